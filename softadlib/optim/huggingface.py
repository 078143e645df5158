"""SAM in Hugging Face's Trainer, which hands no closure. Imports nothing of transformers."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from softadlib import functional as F
from softadlib._validation import UserError
from softadlib.functional.gradient_rules import Grads
from softadlib.functional.reduction import HALF
from softadlib.optim.passes import MovedWeights, dense_gradient
from softadlib.optim.perturbed import perturbed_pass

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""Inputs, and the other arguments, of one `training_step`."""


class SAMTrainerMixin:
    """SAM for `transformers.Trainer`: the optimizer steps with the gradient at w + r·g/‖g‖.

    Put it before Trainer; optimizer, schedules, clipping and checkpoints stay the Trainer's. The
    perturbation is that of the whole batch: micro-batches are kept, and run again at the perturbed
    weights after the last of them, so 4 × 8 is 1 × 32. The losses that are logged are those at w.

    Attributes:
        sam_radius: L2 length of the perturbation in weight space. 0.05 unless set.

    Raises:
        ValueError: for parameters in half precision, under DeepSpeed and FSDP.

    Foret et al. (2021).

    Example:
        >>> class Trainer(SAMTrainerMixin, object):  # in place of object: transformers.Trainer
        ...     sam_radius = 0.1
    """

    sam_radius: float = 0.05
    _micro_batches: list[Call]
    """The calls of `training_step` since the last step of the optimizer."""

    @torch.no_grad()
    def training_step(self, model: nn.Module, inputs: Any, *args: Any, **settings: Any) -> Tensor:
        """Run one micro-batch, and after the last of a batch all of them at the perturbed weights."""
        trainer: Any = self
        run: Callable[..., Tensor] = torch.enable_grad()(super().training_step)  # type: ignore[misc]
        if not hasattr(self, "_micro_batches") or all(p.grad is None for p in model.parameters()):
            self._micro_batches = []  # a batch that was given up is forgotten
        self._micro_batches.append((copy.copy(inputs), args, settings))
        loss = run(model, inputs, *args, **settings)
        if not trainer.accelerator.sync_gradients:
            return loss
        micro_batches = self._micro_batches
        self._micro_batches = []
        params: Grads = {n: p for n, p in model.named_parameters() if p.grad is not None}
        _check(trainer, params)
        grads = {name: dense_gradient(p) for name, p in params.items()}
        if trainer.accelerator.scaler and not F.global_norm(grads).isfinite():
            return loss  # the scaler sees the overflow and skips the step
        point = F.perturb(params, grads, self.sam_radius)
        grads.clear()  # frees them for the second pass
        for p in params.values():
            p.grad = None
        with MovedWeights(params, point), perturbed_pass():
            for inputs, args, settings in micro_batches:
                run(model, inputs, *args, **settings)
        return loss


def _check(trainer: Any, params: Grads) -> None:
    """Raise UserError for parameters that cannot be perturbed by their gradient."""
    if any(p.dtype in HALF for p in params.values()):
        raise UserError("SAM needs float32 parameters; load the model so, and set bf16=True")
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise UserError("SAMTrainerMixin needs whole parameters; train without DeepSpeed and FSDP")
