"""Objectives on per-sample losses, and gradient rules: pure functions of tensors, without state.

`objectives` holds SoftAD, Flooding, iFlood, AdaFlood, focal loss and ERM, `derivatives` their
derivatives in the losses; `class_probabilities` what logits say of the classes, given the criterion,
and the temperature that it asks for; `robust` CVaR, chi-square DRO and tilted losses; `gradient_rules`
SAM, ASAM, MSAM, GNP and FD-GR as functions of a gradient function.
"""

from softadlib.functional.class_probabilities import (
    class_log_probabilities as class_log_probabilities,
)
from softadlib.functional.class_probabilities import class_probabilities as class_probabilities
from softadlib.functional.class_probabilities import temperature_asked as temperature_asked
from softadlib.functional.derivatives import erm_derivative as erm_derivative
from softadlib.functional.derivatives import flooding_derivative as flooding_derivative
from softadlib.functional.derivatives import focal_derivative as focal_derivative
from softadlib.functional.derivatives import iflood_derivative as iflood_derivative
from softadlib.functional.derivatives import (
    iflood_no_ascent_derivative as iflood_no_ascent_derivative,
)
from softadlib.functional.derivatives import softad_derivative as softad_derivative
from softadlib.functional.derivatives import softad_logcosh_derivative as softad_logcosh_derivative
from softadlib.functional.derivatives import (
    softad_no_ascent_derivative as softad_no_ascent_derivative,
)
from softadlib.functional.derivatives import softad_width_derivative as softad_width_derivative
from softadlib.functional.gradient_rules import ASAM_VARIANTS as ASAM_VARIANTS
from softadlib.functional.gradient_rules import BN_UPDATES as BN_UPDATES
from softadlib.functional.gradient_rules import FD_SCHEMES as FD_SCHEMES
from softadlib.functional.gradient_rules import GNP_MIXINGS as GNP_MIXINGS
from softadlib.functional.gradient_rules import Grads as Grads
from softadlib.functional.gradient_rules import asam_gradient as asam_gradient
from softadlib.functional.gradient_rules import asam_perturb as asam_perturb
from softadlib.functional.gradient_rules import fdgr_gradient as fdgr_gradient
from softadlib.functional.gradient_rules import global_norm as global_norm
from softadlib.functional.gradient_rules import gnp_gradient as gnp_gradient
from softadlib.functional.gradient_rules import msam_gradient as msam_gradient
from softadlib.functional.gradient_rules import perturb as perturb
from softadlib.functional.gradient_rules import plain_gradient as plain_gradient
from softadlib.functional.gradient_rules import sam_gradient as sam_gradient
from softadlib.functional.objectives import LN2 as LN2
from softadlib.functional.objectives import SCALES as SCALES
from softadlib.functional.objectives import adaflood as adaflood
from softadlib.functional.objectives import erm as erm
from softadlib.functional.objectives import flood_levels as flood_levels
from softadlib.functional.objectives import flooding as flooding
from softadlib.functional.objectives import focal as focal
from softadlib.functional.objectives import iflood as iflood
from softadlib.functional.objectives import iflood_no_ascent as iflood_no_ascent
from softadlib.functional.objectives import phi as phi
from softadlib.functional.objectives import rho as rho
from softadlib.functional.objectives import softad as softad
from softadlib.functional.objectives import softad_logcosh as softad_logcosh
from softadlib.functional.objectives import softad_no_ascent as softad_no_ascent
from softadlib.functional.objectives import softad_width as softad_width
from softadlib.functional.reduction import REDUCTIONS as REDUCTIONS
from softadlib.functional.robust import chi2_dro as chi2_dro
from softadlib.functional.robust import cvar as cvar
from softadlib.functional.robust import tilted as tilted


def __getattr__(name: str) -> object:
    renamed = name.removesuffix("_weights") + "_derivative"
    if renamed in globals():
        raise AttributeError(f"functional.{name} of 0.2.0 is now functional.{renamed}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
