"""SoftAD around a squared error and a hinge loss: one step by hand, and what training does to the gap."""

import numpy as np
import pytest
import torch
from torch import nn

from softadlib import SoftAD
from softadlib._validation import UserError
from softadlib.workbook.experiments import another_loss


def test_the_data_have_the_noise_they_say(monkeypatch):
    monkeypatch.setattr(another_loss, "N_TRAIN", 20000)
    problem = another_loss.regression(np.random.default_rng(0))
    x, y = problem.train
    assert (y[:, 0] - x[:, 0]).std().item() == pytest.approx(0.3, abs=0.01)
    x, y = another_loss.classification(np.random.default_rng(0)).train
    rule = (x[:, 0] + x[:, 1] + torch.sin(x[:, 1] - x[:, 0]) > 0).long()
    assert (rule != y).double().mean().item() == pytest.approx(0.1)


def test_a_step_of_a_linear_model_by_hand():
    """f(x) = w·x at w = 1: squared errors 4 and 0.25, θ = 1, so weights φ(3) and φ(−0.75)."""
    model = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(1.0)
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    y = torch.tensor([[-1.0], [1.5]], dtype=torch.float64)  # residuals 2 and 0.5
    SoftAD(1.0, base=nn.MSELoss())(model(x), y).backward()
    first = 3 / np.sqrt(10) * 2 * 2 * 1
    second = -0.6 * 2 * 0.5 * 2
    assert model.weight.grad.item() == pytest.approx((first + second) / 2)


@pytest.mark.parametrize("loss", ["squared", "hinge"])
def test_softad_holds_the_training_loss_up_and_narrows_the_gap(loss):
    rows = another_loss.another_loss_rows(loss, [0.09], trials=2)
    means = rows.groupby("method")[["loss_train", "loss_test"]].mean()
    gap = means["loss_test"] - means["loss_train"]
    assert len(rows) == 4
    assert means.loc["erm", "loss_train"] < 0.07
    assert means.loc["softad", "loss_train"] == pytest.approx(0.09, abs=0.03)
    assert gap["softad"] < gap["erm"]
    assert ("acc_test" in rows) == (loss == "hinge")


def test_runs_repeat():
    first, again = (
        another_loss.another_loss_rows("squared", [0.1], trials=1, steps=20) for _ in range(2)
    )
    assert first.equals(again)


def test_another_name_is_refused():
    with pytest.raises(UserError, match="squared, hinge"):
        another_loss.another_loss_rows("absolute", [0.1])
