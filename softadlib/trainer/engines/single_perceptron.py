"""One multilayer perceptron on a CPU, with gradients written by hand.

A network this small spends its time in matrix products and in waiting for memory. A run trained from
its first epoch to its last stays in the cache, and autograd's bookkeeping is saved: by `AutogradEngine` a
step takes 1.36 to 1.41 times as long for mlp4x500 in batches of 50, 1.16 to 1.18 for mlp1x1000 in batches of
200 (outputs/bench). The engine takes a single run, so no run shares a kernel with another and its
numbers depend on no other run.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from softadlib.functional.gradient_rules import Grads
from softadlib.trainer.engines.base import RunGroup
from softadlib.trainer.engines.layers import backward, forward, fuse_batchnorm, parse_perceptron
from softadlib.trainer.engines.single_run import SingleRunEngine, logit_gradient


class PerceptronEngine(SingleRunEngine):
    """Trains one multilayer perceptron on a CPU. Raises ValueError for anything else."""

    @staticmethod
    def supports(network: nn.Module, device: torch.device, bf16: bool = False) -> bool:
        """Tell whether this engine trains networks like `network` on `device`."""
        return device.type == "cpu" and not bf16 and parse_perceptron(network) is not None

    def __init__(self, group: RunGroup):
        super().__init__(group)
        layers = parse_perceptron(self.template)
        if layers is None or len(group) != 1:
            raise ValueError(
                "PerceptronEngine takes one network of Linear, BatchNorm1d, ReLU in a row; use AutogradEngine"
            )
        self.layers = layers

    def network(self, run: int) -> Callable[[Tensor], Tensor]:
        return fuse_batchnorm(self.layers, *self.tensors_of(run))

    def gradients(
        self, params: Grads, x: Tensor, y: Tensor, settings: dict[str, Any], track: bool
    ) -> Grads:
        _, buffers = self.tensors_of(0)
        logits, tape = forward(self.layers, params, buffers, x, track)
        g = logit_gradient(self.method, logits, y, self.hyperparameter[0], **settings)
        return backward(self.layers, params, tape, g)
