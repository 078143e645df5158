"""The Moreau envelope of iFlood's objective, Proposition 4: its prox with a certified error."""

import numpy as np

from softadlib.workbook.experiments.theory.problems import Oracle, SquaredDistances, norms


def moreau_prox(
    oracle: Oracle, w: np.ndarray, theta: float, beta: float, l_star: float, tol: float = 1e-4
) -> tuple[np.ndarray, np.ndarray]:
    """Return argmin_v mean|ℓ(v) − θ| + ‖v − w‖²/(2β), (…, d) → (…, d), each with a bound ≤ `tol` on its error.

    Newton's method on √((ℓ−θ)² + ε²), ε falling. With u = (ℓ−θ)/√(…) in [−1, 1] the minimum over v
    of mean u(ℓ(v)−θ) + ‖v−w‖²/(2β) lies below the sought one, so the duality gap bounds the error;
    the problem is (1/β − L*)-strongly convex, for β < 1/L*. ∇F̄(w) = (w − v)/β. Raises ArithmeticError
    where rounding keeps the bound above `tol`.
    """
    mu = 1 / beta - l_star
    flat = np.reshape(np.asarray(w, dtype=float), (-1, np.shape(w)[-1]))
    v = flat.copy()
    error = np.full(len(flat), np.inf)
    epsilon = 1.0
    while (todo := np.flatnonzero(error > tol)).size:
        if epsilon < 1e-13:
            raise ArithmeticError(
                f"the prox is known to {error.max():.1e}, not to {tol:g}; give a larger tol"
            )
        minimisers, bound = _newton(oracle, v[todo], flat[todo], theta, beta, mu, epsilon, tol)
        better = bound < error[todo]  # at the smallest ε rounding takes over
        v[todo[better]] = minimisers[better]
        error[todo[better]] = bound[better]
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
        losses, gradients = oracle(v)
        r = losses - theta
        size = np.hypot(r, epsilon)
        u = (r / size)[..., None]
        slope = (u * gradients).mean(-2) + (v - w) / beta
        gap = (np.abs(r) - r * u[..., 0]).mean(-1) + np.square(slope).sum(-1) / (2 * mu)
        if (np.square(slope).sum(-1) <= (0.1 * mu * tol) ** 2).all():
            break
        sharp = (epsilon / size) ** 2 / size
        outer = gradients[..., :, None] * gradients[..., None, :]
        bend = (sharp[..., None, None] * outer + u[..., None] * eye).mean(-3) + eye / beta
        move = -np.linalg.solve(bend, slope[..., None])[..., 0]
        gain = (move * slope).sum(-1)
        length = np.ones(len(v))
        for _ in range(40):  # halve until the value falls as it should
            tried = v + length[:, None] * move
            after = _smoothed(oracle(tried)[0] - theta, tried - w, beta, epsilon)
            short = after > value + 1e-4 * length * gain + 1e-15
            if not short.any():
                break
            length[short] /= 2
        v = tried
        value = after
    return v, np.sqrt(2 * gap / mu)


def _smoothed(r: np.ndarray, moved: np.ndarray, beta: float, epsilon: float) -> np.ndarray:
    """Return mean √(r² + ε²) + ‖moved‖²/(2β), (m, n), (m, d) → (m,)."""
    return np.asarray(np.hypot(r, epsilon).mean(-1) + np.square(moved).sum(-1) / (2 * beta))


def envelope(
    problem: SquaredDistances, w: np.ndarray, theta: float, tol: float = 1e-4
) -> tuple[np.ndarray, np.ndarray]:
    """Return F̄ (…,) and ∇F̄ (…, d) of iFlood's objective at β = 1/(2L*), the prox solved to `tol`.

    Raises ValueError where the prox leaves the ball: the infimum over it would be another.
    """
    beta = 1 / (2 * problem.l_star)
    v, _ = moreau_prox(problem, w, theta, beta, problem.l_star, tol)
    if (norms(v) > problem.radius + tol).any():
        raise ValueError("the prox lies outside the ball; enlarge the ball")
    value = theta + np.abs(problem(v)[0] - theta).mean(-1) + np.square(v - w).sum(-1) / (2 * beta)
    return value, (w - v) / beta


def least_envelope(problem: SquaredDistances, theta: float, grid: int = 41) -> float:
    """Return inf F̄ = inf θ + E|ℓ − θ|: the minimum on a grid over the ball's square, then prox steps."""
    d = problem.points.shape[1]
    axis = np.linspace(-problem.radius, problem.radius, grid) / d**0.5
    w = np.stack(np.meshgrid(*[axis] * d, indexing="ij"), -1).reshape(-1, d)
    w = w[np.argsort(envelope(problem, w, theta)[0])[:10]]
    for _ in range(30):
        w = w - envelope(problem, w, theta)[1] / (2 * problem.l_star)
    return float(envelope(problem, w, theta)[0].min())


def hardest_iflood(theta: float, start: float = 0.5) -> tuple[SquaredDistances, np.ndarray]:
    """Return one point on the line, ℓ = w²/2 on [−s, s], s = √(2θ), from `start`·s: Prop. 4's constant fails.

    From s/2, ‖∇F̄‖² = 4L*Δ = G², the most that either allows: at T = 1 the left side is 2q. From
    near 0 the left side tends to (8 ln 2 − 4)q ≈ 1.545q as T grows, above the stated √2·q.
    """
    s = (2 * theta) ** 0.5
    return SquaredDistances(np.zeros((1, 1)), s), np.array([start * s])
