"""Objectives on per-sample losses, and gradient rules: pure functions of tensors, without state.

`objectives` holds SoftAD, Flooding, iFlood, AdaFlood and ERM; `robust` CVaR, chi-square DRO and tilted
losses; `gradient_rules` SAM, ASAM, GNP and FD-GR as functions of a gradient function.
"""

from .gradient_rules import ASAM_VARIANTS as ASAM_VARIANTS
from .gradient_rules import BN_UPDATES as BN_UPDATES
from .gradient_rules import FD_SCHEMES as FD_SCHEMES
from .gradient_rules import GNP_MIXINGS as GNP_MIXINGS
from .gradient_rules import Grads as Grads
from .gradient_rules import asam_gradient as asam_gradient
from .gradient_rules import asam_perturb as asam_perturb
from .gradient_rules import fdgr_gradient as fdgr_gradient
from .gradient_rules import global_norm as global_norm
from .gradient_rules import gnp_gradient as gnp_gradient
from .gradient_rules import perturb as perturb
from .gradient_rules import plain_gradient as plain_gradient
from .gradient_rules import sam_gradient as sam_gradient
from .objectives import LN2 as LN2
from .objectives import SCALES as SCALES
from .objectives import WEIGHTS as WEIGHTS
from .objectives import adaflood as adaflood
from .objectives import adaflood_at as adaflood_at
from .objectives import erm as erm
from .objectives import erm_weights as erm_weights
from .objectives import flood_levels as flood_levels
from .objectives import flooding as flooding
from .objectives import flooding_weights as flooding_weights
from .objectives import iflood as iflood
from .objectives import iflood_weights as iflood_weights
from .objectives import phi as phi
from .objectives import rho as rho
from .objectives import softad as softad
from .objectives import softad_weights as softad_weights
from .reduction import REDUCTIONS as REDUCTIONS
from .robust import chi2_dro as chi2_dro
from .robust import cvar as cvar
from .robust import tilted as tilted
