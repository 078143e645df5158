"""How near to stationary SoftAD and iFlood come: the algorithms of the propositions, and their bounds.

Holland & Nakatani (2024), Sec. 3.2 and App. B. Points are float64 arrays (…, d); all leading axes
are independent runs, taken side by side. Nothing here is differentiated automatically.
"""

import math
from collections.abc import Callable

import numpy as np

from softadlib._validation import choose, real, whole
from softadlib.functional import SCALES

Oracle = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""v (…, d) → losses (…, n), their gradients (…, n, d) and Hessians (…, n, d, d)."""
GAMMAS = ("corrected", "paper")


def norms(v: np.ndarray) -> np.ndarray:
    """Return the L2 norm along the last axis, (…, d) → (…, 1)."""
    lengths: np.ndarray = np.linalg.norm(v, axis=-1, keepdims=True)
    return lengths


def soft_gradient(losses: np.ndarray, gradients: np.ndarray, theta: float) -> np.ndarray:
    """Return φ(ℓ − θ)·∇ℓ, (…,), (…, d) → (…, d): SoftAD's G_t at σ = 1."""
    x = losses - theta
    weighted: np.ndarray = (x / np.hypot(1, x))[..., None] * gradients
    return weighted


def hard_gradient(losses: np.ndarray, gradients: np.ndarray, theta: float) -> np.ndarray:
    """Return sign(ℓ − θ)·∇ℓ, (…,), (…, d) → (…, d), sign(0) = 0: iFlood's G_t."""
    weighted: np.ndarray = np.sign(losses - theta)[..., None] * gradients
    return weighted


def l_ad(g2: float, l_loss: float, sigma: float = 1.0, scale: str = "code") -> float:
    """Return L_AD = L_φ·E sup‖∇ℓ‖² + B_φ·L_ℓ: a Lipschitz constant of SoftAD's mean gradient on a convex set.

    (L_φ, B_φ) is (1, σ) under "code", (1/σ, 1) under "text"; eq. (smoothness_factor) is σ = 1.
    `g2` = E sup‖∇ℓ‖², `l_loss` = L_ℓ. Raises ValueError for σ ≤ 0 or an unknown scale.
    """
    choose("scale", scale, SCALES)
    sigma = real("sigma", sigma, above=0)
    return g2 + sigma * l_loss if scale == "code" else g2 / sigma + l_loss


def confidence(steps: int, delta: float) -> float:
    """Return C_δ = 10·ln(3T/δ) + 4·√ln(3T/δ) + 1 for T = `steps` and probability 1 − `delta`."""
    log = math.log(3 * steps / delta)
    return 10 * log + 4 * math.sqrt(log) + 1


def momentum_bounds(
    steps: int, drop: float, smoothness: float, moment: float, delta: float
) -> dict[str, float]:
    """Return bounds on T⁻¹Σ‖∇S(w_t)‖ with probability 1 − δ: "stated" in Prop. 3, "corrected" by its proof.

    drop = S(w_1) − S(w_{T+1}), `smoothness` = L of S, `moment` = G with E‖G_t‖² ≤ G². Corrected is
    eq. (20) as it stands: its coefficient of L is 2b + 1/(2√T), which is not 3/2. Prop. 6 is the
    same with L = d·L/r and G = d·√V/r.
    """
    b, alpha, c = 1 - steps**-0.5, steps**-0.75, confidence(steps, delta)
    stated = steps**-0.25 * (drop + 1.5 * smoothness + 2 * moment * (1 + c))
    terms = (
        drop / (steps * alpha),
        alpha * smoothness / 2,
        2 * b * moment / ((1 - b) * steps),
        2 * b * alpha * smoothness / (1 - b),
        2 * math.sqrt(1 - b) * moment * c,
    )
    return {"stated": stated, "corrected": sum(terms)}


def subgradient_bounds(steps: int, drop: float, g2: float, l_star: float) -> dict[str, float]:
    """Return bounds on T⁻¹ΣE‖∇F̄(w_t)‖²: √2·q "stated" in Prop. 4, 4·q "corrected", q = √(L*·G²·Δ/T).

    `drop` = Δ ≥ F̄(w_1) − inf F̄ at β = 1/(2L*), `l_star` = L* of every ℓ(·; z). 4 is what the
    descent inequality of the proof, 2(Δ + L*G²Tα²)/(Tα), gives at the proposition's own step α.
    """
    q = math.sqrt(l_star * g2 * drop / steps)
    return {"stated": math.sqrt(2) * q, "corrected": 4 * q}


class NormClipMomentum:
    """M ← bM + (1−b)Ḡ, w ← w − αM/‖M‖, where Ḡ = G·min(1, γ/‖G‖) and M₀ = 0: Prop. 3.

    b = 1 − T^(−1/2), α = T^(−3/4), and γ = G·T^(1/4) unless given, for T = `steps` and G = `moment`.
    Every step has length α, but for M = 0, where there is none. Raises ValueError for T < 1.
    """

    def __init__(self, steps: int, moment: float, gamma: float | None = None):
        whole("steps", steps, 1)
        self.b, self.alpha = 1 - steps**-0.5, steps**-0.75
        self.gamma = moment * steps**0.25 if gamma is None else gamma
        self.momentum: np.ndarray = np.zeros(())

    def clip(self, gradient: np.ndarray) -> np.ndarray:
        """Return Ḡ; a zero gradient is left as it is."""
        size = norms(gradient)
        return gradient * np.minimum(1, self.gamma / np.where(size > 0, size, self.gamma))

    def step(self, w: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the next point (…, d)."""
        self.momentum = self.b * self.momentum + (1 - self.b) * self.clip(gradient)
        size = norms(self.momentum)
        point: np.ndarray = w - self.alpha * self.momentum / np.where(size > 0, size, 1)
        return point


class ProjectedSubgradient:
    """w ← Π[w − αG], α = √(Δ/(T·L*·G²)): Prop. 4, with `project` onto a closed convex set."""

    def __init__(
        self, steps: int, drop: float, g2: float, l_star: float,
        project: Callable[[np.ndarray], np.ndarray] = lambda w: w,
    ):  # fmt: skip
        self.alpha = math.sqrt(drop / (steps * l_star * g2))
        self.project = project

    def step(self, w: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the next point (…, d)."""
        return self.project(w - self.alpha * gradient)


def onto_ball(radius: float) -> Callable[[np.ndarray], np.ndarray]:
    """Project to ‖w‖ ≤ radius, (…, d) → (…, d)."""
    return lambda w: w * np.minimum(1, radius / np.maximum(norms(w), radius))


class ZerothOrder:
    """Gradients from values alone: (d/r)·f(w + rU)·U, U uniform on the unit sphere (Prop. 6).

    Unbiased for the gradient of f averaged over the ball of radius r (Flaxman et al. 2004).
    `points` = 2 takes (d/2r)(f(w + rU) − f(w − rU))U, of the same mean and far smaller variance.
    """

    def __init__(self, radius: float, points: int = 1):
        if points not in (1, 2):
            raise ValueError(f"points must be 1 or 2, got {points}")
        self.radius, self.points = radius, points

    @staticmethod
    def directions(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw uniformly from the unit sphere, `shape` = (…, d)."""
        normal = rng.standard_normal(shape)
        unit: np.ndarray = normal / norms(normal)
        return unit

    def gradient(
        self, f: Callable[[np.ndarray], np.ndarray], w: np.ndarray, direction: np.ndarray
    ) -> np.ndarray:
        """Return the estimate (…, d) at w (…, d) along unit vectors (…, d); f is (…, d) → (…,)."""
        value = f(w + self.radius * direction)
        if self.points == 2:
            value = (value - f(w - self.radius * direction)) / 2
        gradient: np.ndarray = w.shape[-1] / self.radius * value[..., None] * direction
        return gradient

    def gamma(
        self, steps: int, d: int, lipschitz: float, v: float, rule: str = "corrected"
    ) -> float:
        """Return the clipping radius T^(1/4)·(d/r)√V, or under "paper" T^(1/4)·√(dL/r).

        The paper puts a smoothness constant where Prop. 3 has a second moment: its γ is so small
        that it clips every gradient to one length, and their mean then says nothing of f.
        """
        choose("gamma", rule, GAMMAS)
        ratio = d / self.radius
        gamma: float = steps**0.25 * math.sqrt(
            ratio * lipschitz if rule == "paper" else ratio**2 * v
        )
        return gamma


def moreau_prox(
    oracle: Oracle, w: np.ndarray, theta: float, beta: float, l_star: float, tol: float = 1e-4
) -> tuple[np.ndarray, np.ndarray]:
    """Return argmin_v mean|ℓ(v) − θ| + ‖v − w‖²/(2β), (…, d) → (…, d), each with a bound ≤ `tol` on its error.

    Newton's method on √((ℓ−θ)² + ε²), ε falling. With u = (ℓ−θ)/√(…) in [−1, 1] the minimum over v
    of mean u(ℓ(v)−θ) + ‖v−w‖²/(2β) lies below the sought one, so the duality gap bounds the error;
    the problem is (1/β − L*)-strongly convex. ∇F̄(w) = (w − v)/β. Raises ValueError unless
    β < 1/L*, ArithmeticError where rounding keeps the bound above `tol`.
    """
    mu = 1 / beta - l_star
    if not mu > 0:
        raise ValueError(f"beta must be below 1/L* = {1 / l_star:g}, got {beta:g}")
    flat = np.reshape(np.asarray(w, dtype=float), (-1, np.shape(w)[-1]))
    v, error, epsilon = flat.copy(), np.full(len(flat), np.inf), 1.0
    while (todo := np.flatnonzero(error > tol)).size:
        if epsilon < 1e-13:
            raise ArithmeticError(
                f"the prox is known to {error.max():.1e}, not to {tol:g}; give a larger tol"
            )
        minimisers, bound = _newton(oracle, v[todo], flat[todo], theta, beta, mu, epsilon, tol)
        better = bound < error[todo]  # at the smallest ε rounding takes over
        v[todo[better]], error[todo[better]] = minimisers[better], bound[better]
        epsilon /= 10
    return v.reshape(np.shape(w)), error.reshape(np.shape(w)[:-1])


def _newton(
    oracle: Oracle,
    v: np.ndarray,
    w: np.ndarray,
    theta: float,
    beta: float,
    mu: float,
    epsilon: float,
    tol: float,
    limit: int = 100,
) -> tuple[np.ndarray, np.ndarray]:
    """Return minimisers (m, d) of the ε-smoothed problem and how far they may be from the sharp one's (m,)."""
    eye = np.eye(w.shape[-1])
    value = _smoothed(oracle(v)[0] - theta, v - w, beta, epsilon)
    for _ in range(limit):
        losses, gradients, hessians = oracle(v)
        r = losses - theta
        size = np.hypot(r, epsilon)
        u = (r / size)[..., None]
        slope = (u * gradients).mean(-2) + (v - w) / beta
        gap = (np.abs(r) - r * u[..., 0]).mean(-1) + np.square(slope).sum(-1) / (2 * mu)
        if (np.square(slope).sum(-1) <= (0.1 * mu * tol) ** 2).all():
            break
        sharp = (epsilon / size) ** 2 / size
        outer = gradients[..., :, None] * gradients[..., None, :]
        bend = (sharp[..., None, None] * outer + u[..., None] * hessians).mean(-3) + eye / beta
        move = -np.linalg.solve(bend, slope[..., None])[..., 0]
        gain, length = (move * slope).sum(-1), np.ones(len(v))
        for _ in range(40):  # halve until the value falls as it should
            tried = v + length[:, None] * move
            after = _smoothed(oracle(tried)[0] - theta, tried - w, beta, epsilon)
            short = after > value + 1e-4 * length * gain + 1e-15
            if not short.any():
                break
            length[short] /= 2
        v, value = tried, after
    return v, np.sqrt(2 * gap / mu)


def _smoothed(r: np.ndarray, moved: np.ndarray, beta: float, epsilon: float) -> np.ndarray:
    values: np.ndarray = np.hypot(r, epsilon).mean(-1) + np.square(moved).sum(-1) / (2 * beta)
    return values
