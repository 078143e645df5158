"""A criterion as `compute_loss_func` of Hugging Face's Trainer. Imports nothing of transformers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from softadlib import functional as F
from softadlib._validation import UserError
from softadlib.losses.base import Criterion, is_classification, per_sample_losses


def hf_loss(criterion: Criterion, *, shift: bool = False) -> Callable[..., Tensor]:
    """Return a `compute_loss_func` for Hugging Face's Trainer, exact under gradient accumulation.

    The Trainer adds up what the function gives for each micro-batch, so it gives Σ f(ℓ)/N with N the
    number of counted labels of the whole batch. In evaluation it gives the mean of the base,
    cross-entropy, so that `eval_loss` can be compared between criteria.

    Args:
        criterion: one whose values add up over samples: ERM, IFlood, SoftAD or Focal.
        shift: True for causal language models, whose logits are for the next token. Set the first
            label of each row to -100 then: it is no next token, and some versions count it.

    Returns:
        A function (outputs, labels, num_items_in_batch=None) → (), of `outputs.logits`.

    Raises:
        ValueError: for a criterion of the whole batch, for another `ignore_index` than -100, and for
            class weights, whose sum over the whole batch the Trainer does not know.

    Example:
        >>> from types import SimpleNamespace
        >>> from softadlib import SoftAD
        >>> loss = hf_loss(SoftAD(0.1))
        >>> outputs = SimpleNamespace(logits=torch.zeros(2, 2, requires_grad=True))
        >>> loss(outputs, torch.tensor([0, 1]), num_items_in_batch=8)  # a quarter of the batch
        tensor(0.0657, grad_fn=<DivBackward0>)
    """
    if not isinstance(criterion, Criterion) or not criterion.decomposes:
        raise UserError(
            f"{type(criterion).__name__} is no sum over samples, and the Trainer adds up micro-batches: "
            "take SoftAD, IFlood, Focal or ERM"
        )
    base = criterion.base
    if is_classification(base) and base.weight is not None:
        raise UserError(
            "the Trainer counts labels and not class weights; leave out weight= of the base, or give "
            "Trainer a compute_loss of your own"
        )

    if getattr(base, "ignore_index", -100) != -100:
        raise UserError(
            f"the Trainer counts the labels that are not -100, and base ignores {base.ignore_index}; mark them "  # type: ignore[attr-defined]
            "by -100 and leave out ignore_index="
        )

    def compute_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs.logits
        if shift:
            logits, labels = logits[:, :-1], labels[:, 1:]
        if not labels.is_floating_point():
            logits, labels = logits.flatten(0, -2), labels.flatten()
        elif logits.ndim == labels.ndim + 1 and logits.shape[-1] == 1:  # regression
            logits = logits.squeeze(-1)
        if not logits.requires_grad:
            losses, counts = per_sample_losses(base, logits, labels)
            return F.erm(losses, weights=counts)
        reduction, criterion.reduction = criterion.reduction, "none"
        try:
            values: Tensor = criterion(logits, labels)
        finally:
            criterion.reduction = reduction
        if num_items_in_batch is None:
            num_items_in_batch = (labels != -100).sum()
        if torch.is_tensor(num_items_in_batch):
            num_items_in_batch = num_items_in_batch.to(values.device)
        if labels.is_floating_point():  # K labels can be one sample
            num_items_in_batch = num_items_in_batch * values.numel() / labels.numel()
        return torch.div(values.sum(), num_items_in_batch)

    return compute_loss
