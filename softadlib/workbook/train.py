"""A profile's sweeps without notebooks: on this machine, one shard of them, or on a Ray cluster."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from softadlib import _workspace
from softadlib._validation import UserError
from softadlib.results.folder import claim, profile_dir
from softadlib.training import study
from softadlib.training.executors import shards
from softadlib.training.executors.ray import RayCluster, train
from softadlib.training.protocol import Protocol
from softadlib.workbook.notebooks import plan as plans

FORM = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"


def run(
    profile: str,
    datasets: Sequence[str] | None,
    methods: Sequence[str] | None,
    overrides: Mapping[str, Any],
    *,
    jobs: Callable[[Mapping[str, Protocol]], int],
    fresh: bool = False,
    shard: str | None = None,
    cluster: RayCluster | None = None,
    note: Callable[[Mapping[str, Protocol], list[str]], object] = lambda found, words: None,
) -> tuple[list[str], str]:
    """Train what is left. Returns what went wrong on a cluster, and a word on the shard if there is one.

    `jobs` and `note` are told of the checked protocols. Raises UserError for any bad input.
    """
    part = None
    if shard is not None:
        if fresh:
            raise UserError(
                "--fresh forgets what other shards did; delete the folder, or leave it out"
            )
        which, count = shards.parse(shard)
        part = shards.trials(shards.of(profile, datasets, methods, overrides, count)[1][which - 1])
    found, left_out = plans.protocols(profile, datasets, overrides)
    pairs = [(p, m) for p in found.values() for m in plans.methods_of(p, methods)]
    _workspace.check_writable(profile_dir(profile))
    if part is not None:
        pairs = [(p, m) for p, m in pairs if (p.dataset, m) in part]
    processes = jobs(found)
    where = cluster.device if cluster else lambda protocol: None
    trials = lambda p, m: None if part is None else part[p.dataset, m]  # noqa: E731
    studies = [study.Study(p, m, where(p), trials(p, m)) for p, m in pairs]
    for one in () if fresh else studies:
        one.done()  # a broken table is refused before anything starts
    note(found, left_out + ([] if fresh else plans.stored(studies)))
    errors: list[str] = []
    total = sum(one.units() for one in studies)
    locked = claim(profile, [(p.dataset, m) for p, m in pairs], shared=part is not None)
    with locked, tqdm(total=total, bar_format=FORM, disable=None) as bar:
        if cluster:
            errors = list(train(pairs, cluster, resume=not fresh, tick=bar.update).values())
        for protocol, method in () if cluster else pairs:
            bar.set_description_str(f"{protocol.dataset} × {method}")
            some = trials(protocol, method)
            study.run(
                protocol, method, jobs=processes, resume=not fresh, tick=bar.update, trials=some
            )
    if part is None:
        return errors, ""
    there = sum(len(some) for (d, _), some in part.items() if d in found)
    return errors, (
        f"shard {shard}: {there} trials are trained; when all {count} shards are, and their outputs/ "
        "in one folder, the same command without --shard puts them together"
    )
