"""Bounds of Propositions 3, 4 and 6, as stated and as their proofs give them, and Remark 5's comparison."""

import math
from collections.abc import Sequence

import pandas as pd


def l_ad(g2: float, l_loss: float, sigma: float = 1.0, scale: str = "code") -> float:
    """Return L_AD = L_φ·E sup‖∇ℓ‖² + B_φ·L_ℓ: a Lipschitz constant of SoftAD's mean gradient on a convex set.

    (L_φ, B_φ) is (1, σ) under "code", (1/σ, 1) under "text"; eq. (smoothness_factor) is σ = 1.
    `g2` = E sup‖∇ℓ‖², `l_loss` = L_ℓ.
    """
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
    b = 1 - steps**-0.5
    alpha = steps**-0.75
    c = confidence(steps, delta)
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


def compare_rates(
    horizons: Sequence[int],
    *,
    drop: float,
    l_loss: float,
    l_star: float,
    g2: float,
    delta: float = 0.1,
    form: str = "corrected",
) -> pd.DataFrame:
    """Return both propositions' bounds on one quantity, (T⁻¹Σ‖∇‖)², at equal T: Remark 5.

    Prop. 3 bounds the average norm, so its bound is squared; Prop. 4 bounds the average squared norm,
    which is at least the square of the average. Prop. 3 holds with probability 1 − δ, Prop. 4 in
    expectation.

    Args:
        horizons: numbers of steps T.
        drop: of either objective, the same for both.
        l_loss: L_ℓ, the smoothness of the expected loss, which Prop. 3 needs.
        l_star: L*, the smoothness of every single loss, which Prop. 4 needs: L* ≥ L_ℓ.
        g2: E sup‖∇ℓ‖².
        delta: probability with which Prop. 3's bound may fail.
        form: of the bounds, "stated" by the propositions or "corrected" by their proofs.

    Columns: `T`, `softad`, `iflood`, and `trivial`, E sup‖∇ℓ‖², which bounds either at every w.
    """
    rows = []
    for steps in horizons:
        softad = momentum_bounds(steps, drop, l_ad(g2, l_loss), math.sqrt(g2), delta)
        iflood = subgradient_bounds(steps, drop, g2, l_star)
        rows.append({"T": steps, "softad": softad[form] ** 2, "iflood": iflood[form]})
    return pd.DataFrame(rows).assign(trivial=g2)
