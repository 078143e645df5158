"""A criterion as `compute_loss_func` of Hugging Face's Trainer. Imports nothing of transformers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from softadlib import functional as F
from softadlib._validation import UserError
from softadlib.functional.reduction import Weights
from softadlib.losses.adaflood import AdaFlood
from softadlib.losses.criterion import Criterion


def hf_loss(criterion: Criterion, *, shift: bool = False) -> Callable[..., Tensor]:
    """Return a `compute_loss_func` for Hugging Face's Trainer, exact under gradient accumulation.

    The Trainer adds up what the function gives for each micro-batch, so it gives Σ w·f(ℓ)/N with N the
    number of counted labels of the whole batch. The weights w are those of the classes and samples; take
    some with the mean 1, because the Trainer counts labels and not weights. In evaluation it gives the
    mean of the base, cross-entropy, so that `eval_loss` can be compared between criteria.

    What the model adds to its own loss, such as the router's loss of a mixture of experts, and the
    Trainer's `label_smoothing_factor` are left out, as in every `compute_loss_func`.

    Args:
        criterion: one whose values add up over samples: ERM, IFlood, SoftAD or Focal.
        shift: True for causal language models, whose logits are for the next token; without it they
            learn to copy their input. Then set the first label of each row to -100, because no logit
            predicts it and some versions count it.

    Returns:
        A function (outputs, labels, num_items_in_batch=None, sample_weight=None) → (), of
        `outputs.logits` (…, classes) and a label for each, or labels in the shape of the logits: class
        probabilities, or numbers for `base=nn.BCEWithLogitsLoss()` and `nn.MSELoss()`. The Trainer gives
        no `sample_weight`; a `compute_loss` of your own can.

    Raises:
        ValueError: for a criterion of the whole batch, for AdaFlood, and for another `ignore_index`
            than -100.

    Example:
        >>> from types import SimpleNamespace
        >>> from softadlib import SoftAD
        >>> loss = hf_loss(SoftAD(0.1))
        >>> outputs = SimpleNamespace(logits=torch.zeros(2, 2, requires_grad=True))
        >>> loss(outputs, torch.tensor([0, 1]), num_items_in_batch=8)  # a quarter of the batch
        tensor(0.0657, grad_fn=<DivBackward0>)
    """
    if not isinstance(criterion, Criterion) or not criterion.additive:
        raise UserError(
            f"the Trainer adds up micro-batches, and {type(criterion).__name__} does not add up; take "
            "SoftAD, IFlood, Focal or ERM(base=loss)"
        )
    if isinstance(criterion, AdaFlood):
        raise UserError(
            "the Trainer gives no index of a sample to AdaFlood; take IFlood, with one level"
        )
    if criterion.base.ignore_index not in (None, -100):
        raise UserError(
            "the Trainer counts labels that are not -100, and the base ignores "
            f"{criterion.base.ignore_index}; use -100"
        )

    def compute_loss(
        outputs: Any, labels: Tensor, num_items_in_batch: Any = None, sample_weight: Weights = None
    ) -> Tensor:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs.logits
        if shift:
            logits = logits[:, :-1]
            labels = labels[:, 1:]
        if labels.numel() == logits.numel():  # a number for each output
            labels = labels.view_as(logits).to(logits.dtype)
            if criterion.base.of_classes and logits.ndim > 2:  # torch has the classes second
                logits, labels = logits.flatten(0, -2), labels.flatten(0, -2)
        else:
            logits = logits.flatten(0, -2)
            labels = labels.flatten()
        if not logits.requires_grad:
            losses, weights = criterion.base(logits, labels, sample_weight)
            return F.erm(losses, sample_weight=weights)
        values = criterion.per_sample(logits, labels, sample_weight=sample_weight)
        count = (labels != -100).sum() if num_items_in_batch is None else num_items_in_batch
        if isinstance(count, Tensor):
            count = count.to(values.device)
        # Of soft labels the Trainer counts each of the K of a sample.
        return torch.div(values.sum(), count * values.numel() / labels.numel())

    return compute_loss
