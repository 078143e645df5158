"""Networks by name: (sample shape, classes) → `nn.Module`."""

import copy
import functools
import math
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor, nn

from softadlib._validation import UserError, choose


def torchvision() -> ModuleType:
    """Import torchvision. Raises a one-line UserError where it is missing or does not match torch."""
    try:
        import torchvision as module
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"torchvision cannot be used with torch {torch.__version__} ({str(error).splitlines()[0]}); "
            "install a matching pair of torch and torchvision from the same index"
        ) from None
    assert isinstance(module, ModuleType)
    return module


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Make x ↦ Wx + b: (n, …) → (n, classes)."""
    layer = nn.Linear(math.prod(shape), classes)
    return layer if len(shape) == 1 else nn.Sequential(nn.Flatten(), layer)


def mlp(
    shape: tuple[int, ...], classes: int, *, width: int, depth: int, batch_norm: bool = True
) -> nn.Module:
    """Make `depth` × [Linear(width, no bias), BatchNorm, ReLU], then Linear: (n, …) → (n, classes).

    Without batch norm the hidden layers have biases.
    """
    layers: list[nn.Module] = [] if len(shape) == 1 else [nn.Flatten()]
    size = math.prod(shape)
    for _ in range(depth):
        layers.append(nn.Linear(size, width, bias=not batch_norm))
        if batch_norm:
            layers.append(nn.BatchNorm1d(width))
        layers.append(nn.ReLU())
        size = width
    return nn.Sequential(*layers, nn.Linear(size, classes))


def _resnet(depth: int, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Make torchvision's network with its ImageNet stem, untrained: (n, 3, H, W) → (n, classes)."""
    if len(shape) != 3 or shape[0] != 3:
        raise UserError(f"resnet{depth} takes images of 3 channels, got samples of shape {shape}")
    make = getattr(torchvision().models, f"resnet{depth}")
    network: nn.Module = make(weights=None, num_classes=classes)
    return network


MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "linear": linear,
    "mlp4x500": functools.partial(mlp, width=500, depth=4),  # of the paper, for the synthetic sets
    "mlp4x500-no-norm": functools.partial(mlp, width=500, depth=4, batch_norm=False),
    "mlp1x1000": functools.partial(mlp, width=1000, depth=1),  # of the paper, for FashionMNIST
    "mlp2x256": functools.partial(mlp, width=256, depth=2),
    "resnet18": functools.partial(_resnet, 18),
    "resnet34": functools.partial(_resnet, 34),
}


def build(name: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Make a network with the weights that `torch.manual_seed(seed)` gives on the CPU.

    The global generator is left as it was. Raises UserError for an unknown name, and as `initialized`.
    """
    choose("model", name, MODELS)
    make = functools.partial(MODELS[name], shape, classes)
    return initialized(make, seed, torch.zeros(2, *shape), f"model {name!r}")


def initialized(make: Callable[[], nn.Module], seed: int, x: Tensor, called: str) -> nn.Module:
    """Make a network after `torch.manual_seed(seed)`.

    Raises UserError for a network that the trainer would silently train in another way than a loop would.

    Args:
        make: () ↦ network.
        seed: of its weights.
        x: inputs (n, …) that a copy is tried on in training mode.
        called: its name in errors.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = make()
        frozen = [key for key, value in network.named_parameters() if not value.requires_grad]
        if frozen:
            raise UserError(
                f"{called}: {frozen[0]} has requires_grad=False, but the trainer steps every parameter; "
                "keep it as a buffer (register_buffer), or train the network in your own loop"
            )
        try:
            tried = copy.deepcopy(network).train()
        except Exception as error:  # whatever a layer of one's own raises
            why = str(error).splitlines()[0]
            raise UserError(
                f"{called} cannot be copied, and the trainer copies it: {why}"
            ) from error
        before = torch.get_rng_state()
        with torch.no_grad():
            tried(x)
        if not torch.equal(before, torch.get_rng_state()):
            raise UserError(
                f"{called} draws random numbers in its forward pass, as dropout and lazy layers do, and a training "
                "here must give the same numbers each time; leave them out, or train it in your own loop"
            )
    return network


def has_batch_norm(network: nn.Module) -> bool:
    """Tell whether any layer of `network` is batch norm, which cannot train on one sample."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules())
