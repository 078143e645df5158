"""Engines: how R runs of one method are stepped on one device. The choice among them stands here."""

import torch
from torch import nn

from softadlib.trainer.engines.autograd import AutogradEngine, is_convolutional
from softadlib.trainer.engines.base import Engine, RunGroup
from softadlib.trainer.engines.single_perceptron import PerceptronEngine
from softadlib.trainer.engines.single_resnet import ResNetEngine

__all__ = ["Engine", "RunGroup", "choose_engine", "runs_at_once", "split_into_groups"]

SIDE_BY_SIDE = 64
"""Most runs that a GPU trains at once: more are hardly faster, and a crash loses all of them."""


def runs_at_once(
    network: nn.Module, device: torch.device | str, convolutional_at_once: int = 1
) -> int:
    """Return how many runs are trained together; a CPU trains one after another.

    `convolutional_at_once`: runs of a convolutional network on a GPU. Four take about half the time that
    they take one after another (outputs/bench), and four times the memory.
    """
    if torch.device(device).type == "cpu":
        return 1
    return convolutional_at_once if is_convolutional(network) else SIDE_BY_SIDE


def split_into_groups(runs: RunGroup, convolutional_at_once: int = 1) -> list[list[int]]:
    """Return the positions in `runs` of those that are trained together, group after group."""
    everything = list(range(len(runs)))
    size = runs_at_once(runs.networks[0], runs.device, convolutional_at_once)
    return [everything[start : start + size] for start in range(0, len(runs), size)]


def choose_engine(group: RunGroup) -> Engine:
    """Make the engine that trains `group`: on a CPU, one perceptron and one ResNet on small images have their own."""
    if len(group) == 1 and PerceptronEngine.supports(group.networks[0], group.device, group.bf16):
        return PerceptronEngine(group)
    if len(group) == 1 and ResNetEngine.supports(
        group.networks[0], group.splits.shape, group.device, group.bf16
    ):
        return ResNetEngine(group)
    return AutogradEngine(group)
