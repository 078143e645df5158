"""Objectives on per-sample losses, and gradient rules: pure functions of tensors, without state.

`objectives` holds SoftAD, Flooding, iFlood, AdaFlood and ERM; `robust` CVaR, chi-square DRO and tilted
losses; `gradient_rules` SAM, ASAM, GNP and FD-GR as functions of a gradient function.
"""

from .gradient_rules import (
    ASAM_VARIANTS,
    BN_UPDATES,
    FD_SCHEMES,
    GNP_MIXINGS,
    Grads,
    asam_gradient,
    asam_perturb,
    fdgr_gradient,
    global_norm,
    gnp_gradient,
    perturb,
    plain_gradient,
    sam_gradient,
)
from .objectives import (
    LN2,
    SCALES,
    WEIGHTS,
    adaflood,
    adaflood_at,
    erm,
    erm_weights,
    flood_levels,
    flooding,
    flooding_weights,
    iflood,
    iflood_weights,
    phi,
    rho,
    softad,
    softad_weights,
)
from .reduction import REDUCTIONS
from .robust import chi2_dro, cvar, tilted

__all__ = [
    "ASAM_VARIANTS",
    "BN_UPDATES",
    "FD_SCHEMES",
    "GNP_MIXINGS",
    "LN2",
    "REDUCTIONS",
    "SCALES",
    "WEIGHTS",
    "Grads",
    "adaflood",
    "adaflood_at",
    "asam_gradient",
    "asam_perturb",
    "chi2_dro",
    "cvar",
    "erm",
    "erm_weights",
    "fdgr_gradient",
    "flood_levels",
    "flooding",
    "flooding_weights",
    "global_norm",
    "gnp_gradient",
    "iflood",
    "iflood_weights",
    "perturb",
    "phi",
    "plain_gradient",
    "rho",
    "sam_gradient",
    "softad",
    "softad_weights",
    "tilted",
]
