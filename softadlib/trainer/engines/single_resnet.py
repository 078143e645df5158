"""One ResNet on 32 × 32 images on a CPU: torchvision's network, computed by `softadlib.small_images`."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from softadlib.functional.gradient_rules import Grads
from softadlib.small_images import is_small_resnet, on_small_maps
from softadlib.trainer.engines.base import RunGroup
from softadlib.trainer.engines.single_run import SingleRunEngine, logit_gradient


class ResNetEngine(SingleRunEngine):
    """Trains one of torchvision's ResNets on 32 × 32 images on a CPU.

    While it trains, a convolution's weight lies as (row, column, in, out), as the products take it.
    """

    @staticmethod
    def supports(
        network: nn.Module, shape: tuple[int, ...], device: torch.device, bf16: bool = False
    ) -> bool:
        """Tell whether this engine trains networks like `network` on samples of `shape`."""
        return device.type == "cpu" and not bf16 and is_small_resnet(network, shape)

    def __init__(self, group: RunGroup):
        super().__init__(group)
        self.fast = on_small_maps(self.template)
        for name, value in self.params.items():
            if value.ndim == 5:
                self.params[name] = value.permute(0, 3, 4, 2, 1).contiguous()

    def tensors_of(self, run: int) -> tuple[Grads, Grads]:
        """Return parameters and buffers of one run in torchvision's shapes, views of the trained ones."""
        params, buffers = super().tensors_of(run)
        return _torchvision_shapes(params), buffers

    @contextlib.contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        with super().evaluation_mode():
            self.fast.eval()
            try:
                yield
            finally:
                self.fast.train()

    def network(self, run: int) -> Callable[[Tensor], Tensor]:
        state = self.tensors_of(run)
        return lambda x: self._logits(state, x)

    def _logits(self, state: tuple[Grads, Grads], x: Tensor) -> Tensor:
        """Return the logits of one run; its parameters have torchvision's shapes."""
        x = x.contiguous(memory_format=torch.channels_last)
        logits: Tensor = functional_call(self.fast, state, (x,))
        return logits

    def gradients(
        self, params: Grads, x: Tensor, y: Tensor, settings: dict[str, Any], track: bool
    ) -> Grads:
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        buffers = {name: value[0] for name, value in self.buffers.items()}
        if not track:
            buffers = {name: value.clone() for name, value in buffers.items()}
        with torch.enable_grad():
            logits = self._logits((_torchvision_shapes(leaves), buffers), x)
        g = logit_gradient(self.method, logits.detach(), y, self.hyperparameter[0], **settings)
        return dict(zip(leaves, torch.autograd.grad(logits, list(leaves.values()), g)))


def _torchvision_shapes(params: Grads) -> Grads:
    """Return views in which weights (row, column, in, out) are (out, in, row, column)."""
    views = {}
    for name, p in params.items():
        views[name] = p.permute(3, 2, 0, 1) if p.ndim == 4 else p
    return views
