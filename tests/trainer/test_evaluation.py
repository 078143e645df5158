"""Loss, accuracy and norm, by hand and against `nn.CrossEntropyLoss`."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from softadlib import fit_temperature
from softadlib.trainer.evaluation import evaluate, loss_summary, model_norm

X = torch.sin(torch.arange(69, dtype=torch.float64)).view(23, 3)
Y = torch.arange(23) % 3


def at(logits, targets, chunk):
    """Loss and accuracy of these logits."""
    return evaluate(lambda index: logits[index], torch.arange(len(logits)), targets, chunk)


def test_hand_example():
    # softmax (¾, ¼), (½, ½), (¼, ¾): losses ln 4/3, ln 2, ln 4
    logits = torch.tensor([[math.log(3), 0.0], [0.0, 0.0], [0.0, math.log(3)]])
    loss, accuracy = at(logits, torch.tensor([0, 1, 0]), 2).tolist()
    assert loss == pytest.approx(math.log(4 / 3 * 2 * 4) / 3, rel=1e-6)
    assert accuracy == pytest.approx(1 / 3)


@given(st.integers(1, 30))
def test_independent_of_the_chunk_and_equal_to_torchs_mean(chunk):
    loss, accuracy = at(3 * X, Y, chunk).tolist()
    assert loss == pytest.approx(nn.CrossEntropyLoss()(3 * X, Y).item(), rel=1e-13)
    assert accuracy == (X.max(1).indices == Y).double().mean().item()


def test_float32_losses_are_summed_in_float64():
    # equal losses, so their mean is each of them; a float32 sum is off by 1e-8 and more
    n = 200_000
    logits = torch.tensor([[0.1, 0.0]]).repeat(n, 1)
    loss, _ = at(logits, torch.zeros(n, dtype=torch.int64), 1000).tolist()
    one = nn.CrossEntropyLoss()(logits[:1], torch.zeros(1, dtype=torch.int64)).item()
    assert loss == pytest.approx(one, rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_diverged_network_has_no_accuracy(bad):
    logits = X.clone()
    logits[7, 0] = bad
    target = Y.clone()
    target[7] = 0
    loss, accuracy = at(logits, target, 10)
    assert not loss.isfinite()
    assert accuracy.isnan()


def test_runs_side_by_side_are_runs_alone():
    """(R, n) samples of one pool, each run with a network of its own."""
    index, scale = (
        torch.stack([torch.arange(0, 12), torch.arange(11, 23)]),
        torch.tensor([1.0, 3.0]),
    )
    both = evaluate(lambda i: scale[:, None, None] * X[i], index, Y, 5)
    for run in range(2):
        alone = evaluate(lambda i, s=scale[run]: s * X[i], index[run], Y, 5)
        torch.testing.assert_close(both[run], alone, rtol=1e-14, atol=0)


def test_model_norm_by_hand():
    params = {"weight": torch.tensor([[1.0, 2.0], [2.0, 4.0]]), "bias": torch.tensor([12.0])}
    assert model_norm(params).item() == 13  # 1 + 4 + 4 + 16 + 144 = 13²
    assert model_norm(params).dtype == torch.float64


def test_a_network_whose_logits_are_all_small_is_measured_without_a_warning():
    """After a few steps all logits may lie between 0 and 1, and are no sigmoids; warnings are errors here."""
    logits = (X.abs() / 2 + 0.1,) * 3
    temperature = loss_summary(logits, (Y,) * 3, calibrated=True)["prior_temperature"]
    with pytest.warns(UserWarning, match="as sigmoids do"):
        assert temperature.tolist() == [fit_temperature(logits[0], Y)] * 3
