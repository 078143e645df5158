"""Part i of N of a profile's training, for machines that know nothing of each other.

The split depends on nothing but the protocols and N: no data are looked at, no clock, no other shard.
"""

import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from softadlib._validation import UserError
from softadlib.data.images import IMAGES, ImageSet
from softadlib.data.synthetic import SYNTHETIC
from softadlib.models import build
from softadlib.training.checks import AUTO
from softadlib.training.memory import forward_flops
from softadlib.training.profiles import datasets_of, load
from softadlib.training.protocol import Protocol


@dataclass(frozen=True, order=True)
class Unit:
    """The smallest part of a split: the grid of one trial, which selection needs whole."""

    dataset: str
    method: str
    label_noise: float
    trial: int
    cost: int
    """Estimated floating-point operations of its training; an image set of one's own counts as CIFAR-10."""


def _image_set(dataset: str) -> ImageSet:
    """Return the facts of an image set; one's own counts as CIFAR-10."""
    return IMAGES.get(dataset, IMAGES["cifar10"])


def _forward(model: str, dataset: str, images: ImageSet) -> int:
    """Count the floating-point operations of one sample's pass through the network."""
    synthetic = dataset in SYNTHETIC
    return _flops(model, (2,), 2) if synthetic else _flops(model, images.shape, images.classes)


@functools.cache
def _flops(model: str, shape: tuple[int, ...], classes: int) -> int:
    return forward_flops(build(model, shape, classes, seed=0), shape)


def units(pairs: Iterable[tuple[Protocol, str]]) -> list[Unit]:
    """List every trial of these protocols' methods, with its cost."""
    out = []
    for protocol, name in pairs:
        runs = protocol.runs(name)
        cost = _cost(protocol, name, grid=len({r.knob for r in runs}))
        trials = sorted({(r.label_noise, r.trial) for r in runs})
        out += [Unit(protocol.dataset, name, *trial, cost) for trial in trials]
    return out


def run_cost(protocol: Protocol, name: str, curve: bool, images: ImageSet | None = None) -> int:
    """Return the cost of one run, measured at the end or at every epoch of its curve.

    `images`: facts of the image set, those of CIFAR-10 for one's own unless they are given. Measuring a
    synthetic set runs at about four times the speed of its steps: the batches are larger.
    """
    images, gradients = images or _image_set(protocol.dataset), protocol.method(name).gradients
    train, test = protocol.n_train or images.n_train * 4 // 5, protocol.n_test or images.n_test
    points = protocol.epochs // protocol.curve_every + 1 if curve else 1
    samples = 3 * train * protocol.epochs * gradients
    measured = (train + (protocol.n_val or images.n_train // 5) + test) * points
    samples += measured // 4 if protocol.dataset in SYNTHETIC else measured
    return _forward(protocol.model, protocol.dataset, images) * samples


def _models_cost(protocol: Protocol, name: str) -> int:
    """Return the cost of the models that one trial of a method needs before its runs."""
    models = int(protocol.grids.get(name) in AUTO)
    if protocol.method(name).samples:
        settings = protocol.settings_of(name)
        models += settings["aux_folds"] - 1 if settings["aux"] == "folds" else 1
    images = _image_set(protocol.dataset)
    train = protocol.n_train or images.n_train * 4 // 5
    forward = _forward(protocol.model, protocol.dataset, images)
    return 3 * train * protocol.epochs * models * forward


def _cost(protocol: Protocol, name: str, grid: int) -> int:
    """Return the cost of one trial: its grid, the replayed run, and the models needed before."""
    replayed = int(grid > 1 and protocol.curves == "selected")
    curves = protocol.curves != "none" and not replayed
    costs = grid * run_cost(protocol, name, curves)
    costs += replayed * run_cost(protocol, name, curve=True)
    return costs + _models_cost(protocol, name)


def split(every: Collection[Unit], shards: int) -> list[list[Unit]]:
    """Give every unit, the costliest first, to the shard with the smallest load; ties to the first shard."""
    parts: list[list[Unit]] = [[] for _ in range(shards)]
    loads = [0] * shards
    for unit in sorted(every, key=lambda u: (-u.cost, u)):
        lightest = loads.index(min(loads))
        parts[lightest].append(unit)
        loads[lightest] += unit.cost
    return parts


def parse(text: str) -> tuple[int, int]:
    """Read `i/N` as (i, N). Raises UserError unless 1 ≤ i ≤ N."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
    which, shards = map(int, match.groups()) if match else (0, 0)
    if not 1 <= which <= shards:
        raise UserError(f"--shard must be i/N with i from 1 to N, such as 2/8; got {text!r}")
    return which, shards


def split_profile(
    profile: str,
    datasets: Sequence[str] | None,
    methods: Sequence[str] | None,
    overrides: Mapping[str, Any],
    shards: int,
) -> tuple[dict[str, Protocol], list[list[Unit]]]:
    """Return the protocols of a profile and the units of each shard; their data need not be here."""
    available = datasets_of(profile)
    names = available if datasets is None else dict.fromkeys(datasets)
    protocols = {name: load(profile, name, overrides) for name in names}
    pairs = [(p, m) for p in protocols.values() for m in p.select_methods(methods)]
    return protocols, split(units(pairs), shards)


def trials_by_method(part: Iterable[Unit]) -> Mapping[tuple[str, str], set[tuple[float, int]]]:
    """Return what a shard trains: (dataset, method) → {(label noise, trial)}."""
    by_pair: dict[tuple[str, str], set[tuple[float, int]]] = {}
    for unit in part:
        by_pair.setdefault((unit.dataset, unit.method), set()).add((unit.label_noise, unit.trial))
    return by_pair
