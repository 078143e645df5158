"""SAMTrainerMixin where transformers' Trainer cannot be brought on a CPU; all else is in workbook/test_recipes.py."""

from types import SimpleNamespace

import pytest
import torch
from helpers.refusals import refused
from torch import nn

from softadlib import SAMTrainerMixin


class Trainer:
    """The two things that the mixin asks of a Trainer."""

    is_deepspeed_enabled = False
    is_fsdp_enabled = False

    def __init__(self, scaler=None):
        self.accelerator = SimpleNamespace(sync_gradients=True, scaler=scaler)
        self.points = []

    def training_step(self, model, inputs):
        self.points.append(model.weight.detach().clone())
        loss = (model.weight.square() * inputs).sum() / 2
        loss.backward()
        return loss.detach()


class SAMTrainer(SAMTrainerMixin, Trainer):
    sam_radius = 0.5


def module(dtype=torch.float32):
    model = nn.Linear(2, 1, bias=False)
    model.weight = nn.Parameter(torch.tensor([[3.0, 4.0]], dtype=dtype))
    return model


def test_the_second_pass_is_at_the_perturbed_weights():
    model, trainer = module(), SAMTrainer()
    assert trainer.training_step(model, torch.tensor(1.0)) == 12.5
    torch.testing.assert_close(trainer.points[1], torch.tensor([[3.3, 4.4]]))  # 1.1·w
    torch.testing.assert_close(model.weight.grad, torch.tensor([[3.3, 4.4]]))
    assert model.weight.tolist() == [[3.0, 4.0]]


def test_an_overflow_is_left_to_the_scaler_without_a_second_pass():
    model, trainer = module(), SAMTrainer(scaler=torch.amp.GradScaler("cpu"))
    trainer.training_step(model, torch.tensor(torch.inf))
    assert len(trainer.points) == 1
    assert not model.weight.grad.isfinite().any()
    assert model.weight.tolist() == [[3.0, 4.0]]
    model.zero_grad()
    trainer.training_step(model, torch.tensor(1.0))
    assert len(trainer.points) == 3, "the micro-batch that overflowed is not run again"


@pytest.mark.parametrize(
    ("dtype", "flag", "word"),
    [
        (torch.bfloat16, "", "float32"),
        (torch.float32, "is_fsdp_enabled", "FSDP"),
        (torch.float32, "is_deepspeed_enabled", "DeepSpeed"),
    ],
)
def test_parameters_in_half_precision_or_in_shards_are_refused(dtype, flag, word):
    trainer = SAMTrainer()
    setattr(trainer, flag, True)
    refused(lambda: trainer.training_step(module(dtype), torch.tensor(1.0)), word)
