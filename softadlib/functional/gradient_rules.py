"""Gradient rules: what the optimizer sees, made of one to three gradients. Pure functions, no state.

A rule takes `gradient(params, track=…)`, which gives the gradients at `params` (one run's, by name),
and the method's hyperparameter; the hyperparameter and every number may be a 0-d tensor, one per run under `vmap`.
`bn_update="both"` lets every pass move batch norm's running statistics, as the paper's code does;
"first" keeps those of the first pass, as most public implementations do.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from softadlib._validation import UserError, choose
from softadlib.functional.reduction import Number, check_number

Grads = dict[str, Tensor]
Gradient = Callable[..., Grads]
"""`gradient(params, track=True)`: the gradients at `params`, by name."""
ASAM_VARIANTS = {"official": 1e-16, "davda54": 1e-12}
"""The two public ASAMs, and what each adds to the norm it divides by."""
GNP_MIXINGS = ("paper", "official")
FD_SCHEMES = ("forward", "centered")
BN_UPDATES = ("both", "first")


def global_norm(grads: Grads) -> Tensor:
    """Return L2 norm of all entries of all tensors together, (), on the device of the first.

    Raises ValueError for float16, whose squares overflow and in which 1e-12 is 0.

    >>> global_norm({"weight": torch.tensor([3.0, 0.0]), "bias": torch.tensor([4.0])})
    tensor(5.)
    """
    for name, g in grads.items():
        if g.dtype == torch.float16:
            raise UserError(
                f"the gradient of {name} is float16, whose norm overflows; use float32 parameters, under "
                "torch.autocast with bfloat16"
            )
    norms = [torch.linalg.vector_norm(g) for g in grads.values()]
    norm: Tensor = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))
    return norm


def _on_device(tensor: Tensor, factor: Number) -> Number:
    """Return `factor` on the device of `tensor`: a model may lie on several."""
    return factor.to(tensor.device) if isinstance(factor, Tensor) else factor


def perturb(params: Grads, grads: Grads, radius: Number) -> Grads:
    """w + r·g/(‖g‖ + 1e-12): a step of L2 length r up the gradient; w where g is zero.

    `radius` in weight space. Foret et al. (2021), eq. 2 with p = 2.

    >>> perturb({"weight": torch.zeros(2)}, {"weight": torch.tensor([3.0, 4.0])}, 0.5)["weight"]
    tensor([0.3000, 0.4000])
    """
    factor = torch.as_tensor(radius / (global_norm(grads) + 1e-12))
    return {name: torch.addcmul(p, grads[name], factor.to(p.device)) for name, p in params.items()}


def _moves_statistics(bn_update: str) -> bool:
    """Tell whether every pass moves batch norm's running statistics."""
    choose("bn_update", bn_update, BN_UPDATES)
    return bn_update == "both"


def plain_gradient(gradient: Gradient, params: Grads, hyperparameter: object = None) -> Grads:
    """g(w): the gradient rule of every method that changes the objective only. `hyperparameter` is ignored.

    >>> w = {"weight": torch.tensor([3.0, 4.0])}
    >>> plain_gradient(lambda params, track=True: params, w)["weight"]  # of ‖w‖²/2
    tensor([3., 4.])
    """
    return gradient(params)


def sam_gradient(
    gradient: Gradient, params: Grads, radius: Number, bn_update: str = "both"
) -> Grads:
    """g(w + r·g(w)/‖g(w)‖): two calls of `gradient`. Foret et al. (2021).

    `radius` in weight space, at least 0; 0 is the base optimizer.

    >>> w = {"weight": torch.tensor([3.0, 4.0])}
    >>> sam_gradient(lambda params, track=True: params, w, 0.5)["weight"]  # of ‖w‖²/2: 1.1·w
    tensor([3.3000, 4.4000])
    """
    perturbed = perturb(params, gradient(params), radius)
    return gradient(perturbed, track=_moves_statistics(bn_update))


def msam_gradient(
    gradient: Gradient, params: Grads, radius: Number, *, momentum: Grads | None
) -> Grads:
    """g(w − r·m/‖m‖) with the optimizer's momentum m: one call of `gradient`. Becker et al. (2024).

    `momentum` is the buffer of each parameter by name, Adam's first moment among them; None before the
    first step, and a parameter without one, count as zero. `radius` in weight space, at least 0; 0 is
    the base optimizer. Against the momentum, which is where the step goes, as the authors' code has it.

    >>> w, m = {"weight": torch.tensor([3.0, 4.0])}, {"weight": torch.tensor([0.0, 2.0])}
    >>> msam_gradient(lambda params, track=True: params, w, 0.5, momentum=m)["weight"]  # of ‖w‖²/2
    tensor([3.0000, 3.5000])
    """
    if not momentum:
        return gradient(params)
    factor = torch.as_tensor(radius / (global_norm(momentum) + 1e-12))
    point = dict(params)
    for name, m in momentum.items():
        point[name] = torch.addcmul(params[name], m, -factor.to(m.device))
    return gradient(point)


def asam_perturb(
    params: Grads, grads: Grads, radius: Number, variant: str = "official", eta: Number = 0.01
) -> Grads:
    """w + r·T²g/‖Tg‖ with a diagonal T as large as the weights: a climb relative to their scale.

    "official" (SamsungLabs): T = |w| + η for every parameter with "weight" in its name, batch norm's
    γ included, and 1 for the others. "davda54": T = |w| for all and no η, so that a bias of 0 never
    moves. `radius` without a unit, `eta` in weight space. ValueError for another variant and for an
    `eta` below 0. Kwon et al. (2021).

    >>> w, g = {"weight": torch.tensor([3.0, 4.0])}, {"weight": torch.ones(2)}
    >>> asam_perturb(w, g, 0.5, "davda54")["weight"]  # T²g = (9, 16), ‖Tg‖ = 5
    tensor([3.9000, 5.6000])
    """
    choose("variant", variant, ASAM_VARIANTS)
    check_number("eta", eta, low=0)
    sizes = {}
    for name, p in params.items():
        if variant == "davda54":
            sizes[name] = p.abs()
        else:
            sizes[name] = p.abs() + eta if "weight" in name else torch.ones_like(p)
    scaled = {name: size * grads[name] for name, size in sizes.items()}
    factor = radius / (global_norm(scaled) + ASAM_VARIANTS[variant])
    point = {}
    for name, p in params.items():
        point[name] = p + _on_device(p, factor) * (sizes[name] * scaled[name])
    return point


def asam_gradient(
    gradient: Gradient,
    params: Grads,
    radius: Number,
    bn_update: str = "both",
    variant: str = "official",
    eta: Number = 0.01,
) -> Grads:
    """g at `asam_perturb`, w + r·T²g/‖Tg‖: two calls of `gradient`. Kwon et al. (2021).

    >>> w = {"weight": torch.tensor([2.0])}
    >>> rule = {"variant": "davda54"}
    >>> asam_gradient(lambda params, track=True: params, w, 0.5, **rule)["weight"]  # 2 + 0.5·8/4
    tensor([3.])
    """
    perturbed = asam_perturb(params, gradient(params), radius, variant, eta)
    return gradient(perturbed, track=_moves_statistics(bn_update))


def gnp_gradient(
    gradient: Gradient,
    params: Grads,
    alpha: Number,
    bn_update: str = "both",
    radius: Number = 0.1,
    mixing: str = "paper",
) -> Grads:
    """(1−α)·g(w) + α·g(w + r·g/‖g‖), which descends L + αr·‖∇L‖: two calls of `gradient`.

    α = 0 is the base optimizer, α = 1 is SAM. `mixing="official"` takes g/‖g‖ as the first g: the
    default of the authors' code, which differs from their formula, and gives g/‖g‖ at α = 0. `radius`
    in weight space; ValueError for another mixing. Zhao et al. (2022).

    >>> w = {"weight": torch.tensor([3.0, 4.0])}
    >>> rule = {"alpha": 0.5, "radius": 0.5}
    >>> gnp_gradient(lambda params, track=True: params, w, **rule)["weight"]  # 0.5·w + 0.5·1.1·w
    tensor([3.1500, 4.2000])
    """
    choose("mixing", mixing, GNP_MIXINGS)
    grads = gradient(params)
    ahead = gradient(perturb(params, grads, radius), track=_moves_statistics(bn_update))
    share = 1 - alpha
    if mixing == "official":
        share = share / (global_norm(grads) + 1e-12)
    return {name: _on_device(g, share) * g + alpha * ahead[name] for name, g in grads.items()}


def fdgr_gradient(
    gradient: Gradient,
    params: Grads,
    strength: Number,
    bn_update: str = "both",
    step_size: Number = 0.01,
    scheme: str = "forward",
) -> Grads:
    """g + λ·(g(w + a·g) − g)/a ≈ ∇(L + λ/2·‖∇L‖²): two calls of `gradient`, three if "centered".

    λ = `strength` and a = `step_size` > 0, both in units of a learning rate. "centered" is
    (g(w + a·g) − g(w − a·g))/2a, off by O(a²) where "forward" is off by O(a); in float32 rounding
    takes over below a of 1e-4 or so. ValueError for another scheme and for a step that is not above
    0. Karakida et al. (2023).

    >>> w = {"weight": torch.tensor([3.0, 4.0])}
    >>> rule = {"strength": 0.5, "step_size": 0.5}
    >>> fdgr_gradient(lambda params, track=True: params, w, **rule)["weight"]  # w + 0.5·w
    tensor([4.5000, 6.0000])
    """
    choose("scheme", scheme, FD_SCHEMES)
    check_number("step_size", step_size, above=0)
    track = _moves_statistics(bn_update)
    grads = gradient(params)
    back, width = grads, step_size
    up = gradient({name: p + step_size * grads[name] for name, p in params.items()}, track=track)
    if scheme == "centered":
        behind = {name: p - step_size * grads[name] for name, p in params.items()}
        back = gradient(behind, track=track)
        width = 2 * step_size
    return {name: g + strength * ((up[name] - back[name]) / width) for name, g in grads.items()}
