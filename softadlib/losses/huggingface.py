"""A criterion as `compute_loss_func` of Hugging Face's Trainer. Imports nothing of transformers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from softadlib import functional as F
from softadlib._validation import UserError
from softadlib.losses.adaflood import AdaFlood
from softadlib.losses.criterion import Criterion
from softadlib.losses.notices import warn

OWN = "give the Trainer your own compute_loss_func"
TAKE = "take SoftAD, IFlood, Focal or ERM"


def hf_loss(
    criterion: Criterion,
    *,
    shift: bool = False,
    router_aux_loss_coef: float | None = None,
    args: Any = None,
) -> Callable[..., Tensor]:
    """Return a `compute_loss_func` for Hugging Face's Trainer, exact under gradient accumulation.

    The Trainer adds up what the function gives for each micro-batch, so it gives Σ f(ℓ)/N with N the
    number of counted labels of the whole batch. In evaluation it gives the mean of the base,
    cross-entropy, so that `eval_loss` can be compared between criteria.

    Args:
        criterion: one whose values add up over samples: ERM, IFlood, SoftAD or Focal.
        shift: True for causal language models, whose logits are for the next token; without it they
            learn to copy their input. Then set the first label of each row to -100, because no logit
            predicts it and some versions count it.
        router_aux_loss_coef: factor of `outputs.aux_loss`, the router's loss of a mixture of experts,
            as in `model.config`. It is added for each micro-batch, as the model itself does; without
            it the router's loss is left out, and that is warned of.
        args: the `TrainingArguments`, to warn of a `label_smoothing_factor`, which the Trainer
            leaves out beside a `compute_loss_func`.

    Returns:
        A function (outputs, labels, num_items_in_batch=None) → (), of `outputs.logits`.

    Raises:
        ValueError: for a criterion of the whole batch or AdaFlood, for another `ignore_index` than
            -100, and for class weights, whose sum over the whole batch the Trainer does not know; in
            training, for outputs without `logits` or of other shapes than the labels'.

    Example:
        >>> from types import SimpleNamespace
        >>> from softadlib import SoftAD
        >>> loss = hf_loss(SoftAD(0.1))
        >>> outputs = SimpleNamespace(logits=torch.zeros(2, 2, requires_grad=True))
        >>> loss(outputs, torch.tensor([0, 1]), num_items_in_batch=8)  # a quarter of the batch
        tensor(0.0657, grad_fn=<DivBackward0>)
    """
    _check_criterion(criterion)
    smoothing = getattr(args, "label_smoothing_factor", 0)
    if smoothing:
        warn(
            f"the Trainer leaves label_smoothing_factor={smoothing:g} out beside a compute_loss_func; "
            f"give base=nn.CrossEntropyLoss(label_smoothing={smoothing:g}) to the criterion"
        )

    def compute_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits = _output(outputs, "logits")
        if not isinstance(logits, Tensor):
            raise UserError(f"{type(outputs).__name__} has no logits, which hf_loss takes; {OWN}")
        if not isinstance(labels, Tensor):
            raise UserError(f"labels must be a tensor, got {type(labels).__name__}; {OWN}")
        logits, labels = _matched(logits, labels, shift)
        if not logits.requires_grad:
            losses, counts = criterion.base.losses_and_counts(logits, labels)
            return F.erm(losses, weights=counts)
        values = criterion.per_sample(logits, labels)
        count = (labels != -100).sum() if num_items_in_batch is None else num_items_in_batch
        if isinstance(count, Tensor):
            count = count.to(values.device)
        if labels.is_floating_point():  # K labels can be one sample
            count = count * values.numel() / labels.numel()
        loss = torch.div(values.sum(), count)
        router_loss = _output(outputs, "aux_loss")
        if router_loss is not None and router_aux_loss_coef is None:
            warn(
                "the router's loss (outputs.aux_loss) is left out; to add it give hf_loss(criterion, "
                "router_aux_loss_coef=model.config.router_aux_loss_coef)"
            )
        elif router_loss is not None:
            loss = loss + router_aux_loss_coef * router_loss.to(loss.device)
        return loss

    return compute_loss


def _check_criterion(criterion: Any) -> None:
    """Refuse what the Trainer cannot add up over micro-batches."""
    name = type(criterion).__name__
    if isinstance(criterion, AdaFlood):
        raise UserError(
            f"AdaFlood takes the samples' indices, which the Trainer does not give; {TAKE}"
        )
    if not isinstance(criterion, Criterion):
        raise UserError(f"hf_loss takes a criterion of softadlib, got {name}; give ERM(base=loss)")
    if not criterion.decomposes:
        raise UserError(
            f"{name} is no sum over samples, and the Trainer adds up micro-batches; {TAKE}"
        )
    if criterion.base.class_weights is not None:
        raise UserError(
            f"the Trainer counts labels and not class weights; leave out weight= of the base, or {OWN}"
        )
    ignored = criterion.base.ignore_index
    if ignored not in (None, -100):
        raise UserError(
            f"the Trainer counts labels that are not -100, and the base ignores {ignored}; use -100"
        )


def _output(outputs: Any, name: str) -> Any:
    """Return an output of the model by name, from a dict or an object; None where it has none."""
    return outputs.get(name) if isinstance(outputs, dict) else getattr(outputs, name, None)


def _matched(logits: Tensor, labels: Tensor, shift: bool) -> tuple[Tensor, Tensor]:
    """Return logits and labels as the criterion takes them: a row for each label."""
    if shift:
        logits = logits[:, :-1]
        labels = labels[:, 1:]
    if labels.is_floating_point():
        is_regression = logits.ndim == labels.ndim + 1 and logits.shape[-1] == 1
        return (logits.squeeze(-1) if is_regression else logits), labels
    if logits.numel() // logits.shape[-1] != labels.numel():
        raise UserError(
            f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)} do not match: hf_loss takes "
            f"logits (…, classes) and a label for each; {OWN}"
        )
    return logits.flatten(0, -2), labels.flatten()
