"""`hf_loss`: sums that the Trainer adds up to the value of the whole batch, and what it refuses."""

from types import SimpleNamespace

import pytest
import torch
from helpers.refusals import refused
from torch import nn

from softadlib import ERM, AdaFlood, CVaR, Flooding, SoftAD, hf_loss

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(6, 3, generator=GENERATOR, dtype=torch.float64)
CLASSES = torch.tensor([0, 2, 1, 1, 0, 2])
PARTS = (slice(0, 2), slice(2, 6))


def added_up(loss, labels, items, *weights):
    """What the Trainer adds up over two micro-batches of training."""
    logits = LOGITS.clone().requires_grad_()
    return sum(
        loss({"logits": logits[part]}, labels[part], items, *(w[part] for w in weights))
        for part in PARTS
    )


def test_the_entries_of_soft_labels_are_counted_and_their_samples_added():
    """The Trainer counts each of K probabilities as a label; two micro-batches make the mean of all."""
    soft = torch.eye(3, dtype=torch.float64)[CLASSES]
    whole = 0.1 + ((((-soft * LOGITS.log_softmax(1)).sum(1) - 0.1) ** 2 + 1).sqrt() - 1).mean()
    loss = hf_loss(SoftAD(0.1))
    torch.testing.assert_close(added_up(loss, soft, 18), whole)
    torch.testing.assert_close(loss({"logits": LOGITS.clone().requires_grad_()}, soft), whole)


def test_soft_labels_of_tokens_have_their_classes_last():
    """Two rows of two tokens, p = (3/4, 1/4) by the softmax: ln 4/3 for class 0, ln 4 for class 1, half each."""
    logits = torch.tensor([0.75, 0.25]).log().expand(2, 2, 2).clone()
    labels = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.5, 0.5]]])
    right, wrong = torch.tensor(4 / 3).log(), torch.tensor(4.0).log()
    expected = (right + wrong + 2 * (right + wrong) / 2) / 4
    torch.testing.assert_close(hf_loss(ERM())({"logits": logits}, labels), expected)
    trained = hf_loss(ERM())({"logits": logits.requires_grad_()}, labels, 8)
    torch.testing.assert_close(trained, expected)


def test_without_a_number_of_items_it_is_the_mean_over_counted_labels():
    z = LOGITS[:4].clone().requires_grad_()
    labels = torch.tensor([0, -100, 2, -100])
    counted = SoftAD(0.1)(z[[0, 2]], labels[[0, 2]])
    torch.testing.assert_close(hf_loss(SoftAD(0.1))({"logits": z}, labels), counted)


def test_in_evaluation_it_is_the_mean_of_the_base():
    expected = nn.functional.cross_entropy(LOGITS, CLASSES)
    found = hf_loss(SoftAD(0.1))(SimpleNamespace(logits=LOGITS), CLASSES)
    torch.testing.assert_close(found, expected)


def test_shifted_labels_are_those_of_the_next_token():
    logits = torch.randn(2, 4, 5, generator=GENERATOR, requires_grad=True)
    labels = torch.randint(5, (2, 4), generator=GENERATOR)
    expected = SoftAD(0.1)(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    found = hf_loss(SoftAD(0.1), shift=True)({"logits": logits}, labels, 6)
    torch.testing.assert_close(found, expected)


def test_regression_takes_outputs_of_one_column():
    z, y, loss = torch.randn(4, 1, requires_grad=True), torch.ones(4), ERM(base=nn.MSELoss())
    torch.testing.assert_close(hf_loss(loss)({"logits": z}, y), (z[:, 0] - 1).square().mean())


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_several_labels_per_sample_are_binary_whatever_their_type(dtype):
    labels = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, 1], [1, 1, 1]])
    labels = labels.to(dtype)
    loss = hf_loss(ERM(base=nn.BCEWithLogitsLoss()))
    expected = nn.functional.binary_cross_entropy_with_logits(LOGITS, labels.double())
    torch.testing.assert_close(added_up(loss, labels, 18), expected)
    with pytest.warns(UserWarning, match=r"do not sum to 1.*base=nn\.BCEWithLogitsLoss"):
        hf_loss(ERM())({"logits": LOGITS.clone().requires_grad_()}, labels)


def test_weights_of_classes_and_samples_are_summed_and_labels_counted():
    """With weights of mean 1 this is torch's weighted mean over the whole batch."""
    each = torch.tensor([0.5, 2.0, 0.5], dtype=torch.float64)
    weights = each[CLASSES] / each[CLASSES].mean()
    values = SoftAD(0.1).per_sample(LOGITS, CLASSES)
    expected = (weights * values).mean()
    base = nn.CrossEntropyLoss(weight=each / each[CLASSES].mean())
    torch.testing.assert_close(added_up(hf_loss(SoftAD(0.1, base=base)), CLASSES, 6), expected)
    by_sample = added_up(hf_loss(SoftAD(0.1)), CLASSES, 6, weights)
    torch.testing.assert_close(by_sample, expected)
    weighted = hf_loss(SoftAD(0.1))({"logits": LOGITS}, CLASSES, None, weights)
    torch.testing.assert_close(weighted, base(LOGITS, CLASSES))


def test_a_micro_batch_without_a_counted_label_gives_zero():
    logits = torch.zeros(2, 3, requires_grad=True)
    value = hf_loss(SoftAD(0.1))({"logits": logits}, torch.tensor([-100, -100]), 7)
    assert value == 0


def test_it_leaves_the_reduction_alone():
    seen = []

    def base(input, target):
        seen.append(criterion.reduction)
        return nn.functional.cross_entropy(input, target, reduction="none")

    criterion = SoftAD(0.4, base=base)
    hf_loss(criterion)({"logits": LOGITS.clone().requires_grad_()}, CLASSES, 6)
    assert seen == ["mean"]


REFUSALS = {
    "flooding": (lambda: hf_loss(Flooding(0.1)), "Flooding", "SoftAD"),
    "cvar": (lambda: hf_loss(CVaR(0.5)), "CVaR", "SoftAD"),
    "torch": (lambda: hf_loss(nn.MSELoss()), "MSELoss", "ERM(base=loss)"),
    "ignored": (lambda: hf_loss(ERM(nn.CrossEntropyLoss(ignore_index=0))), "ignores 0", "-100"),
    "adaflood": (
        lambda: hf_loss(AdaFlood([0.1, 0.2])),
        "no index of a sample",
        "IFlood",
    ),
}


@pytest.mark.parametrize(("call", "words"), [(c, w) for c, *w in REFUSALS.values()], ids=REFUSALS)
def test_what_the_trainer_cannot_add_up_is_refused(call, words):
    refused(call, *words)
