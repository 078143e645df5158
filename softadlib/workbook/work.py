"""What a command is asked to do, checked before any of it starts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from softadlib import _workspace
from softadlib._validation import MissingData, UserError, choose
from softadlib.models import build
from softadlib.results.store import StudyStore, merge, merge_losses, outputs, stored_facts
from softadlib.training.inputs import load_splits
from softadlib.training.profiles import datasets_of, load, write_profile
from softadlib.training.protocol import Protocol
from softadlib.training.study import Plan, is_finished, plan_study, store_of

OTHER_FOLDERS = ("bench", "book", "fig12", "figures")
"""Folders of `outputs/` that hold something else than the results of a profile."""


@dataclass(frozen=True)
class Study:
    """One dataset × method: its protocol, its files, and what is left of it."""

    protocol: Protocol
    method: str
    store: StudyStore
    plan: Plan
    finished: bool

    @property
    def name(self) -> str:
        """The study in words."""
        return f"{self.protocol.dataset} × {self.method}"


@dataclass(frozen=True)
class Work:
    """The studies of a part of a profile, and why datasets are left out: their data are missing."""

    profile: str
    studies: Sequence[Study]
    left_out: Mapping[str, str]

    @property
    def protocols(self) -> dict[str, Protocol]:
        """The protocols by dataset."""
        return {study.protocol.dataset: study.protocol for study in self.studies}


def prepare(
    profile: str,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    *,
    shard: tuple[int, int] = (1, 1),
    fresh: bool = False,
    stored: bool = False,
) -> Work:
    """Check a part of a profile and return its studies; None stands for all datasets or methods.

    A dataset whose data are missing is left out, but one that is named raises UserError, as any bad
    input does. `fresh`: stored results are going to be deleted, so a broken file is no error.
    `stored`: finished results will do, so that there may be no study whose data are here.
    """
    available = datasets_of(profile)
    for name in datasets or ():
        choose("dataset", name, available)
    studies: list[Study] = []
    left_out: dict[str, str] = {}
    for dataset in dict.fromkeys(available if datasets is None else datasets):
        try:
            protocol = load(profile, dataset, changes)
            for noise in protocol.label_noise:
                splits = load_splits(protocol, noise, trials=1)
        except MissingData as error:
            if datasets is not None:
                raise
            left_out[dataset] = str(error)
            continue
        build(protocol.model, splits.shape, splits.classes, seed=0)
        for method in protocol.select_methods(methods):
            store = store_of(protocol, method)
            rows = merge([]) if fresh else store.rows()
            losses = merge_losses([]) if fresh else store.losses()
            plan = plan_study(protocol, method, rows, losses, shard)
            done = not fresh and is_finished(protocol, method, plan, store)
            studies.append(Study(protocol, method, store, plan, done))
    if not studies and not (stored and stored_facts(profile)):
        more = f"; and so for {len(left_out) - 1} more" if len(left_out) > 1 else ""
        first = next(iter(left_out.values()))
        raise UserError(f"profile {profile!r} has no data here: {first}{more}")
    return Work(profile, studies, left_out)


def derive_profile(
    profile: str,
    name: str,
    datasets: Sequence[str] | None,
    methods: Sequence[str] | None,
    changes: Mapping[str, Any],
    *,
    write: bool = True,
) -> None:
    """Write params/<name>/<dataset>.yaml, which extends the files of `profile` by the changes.

    Other data sets of a profile of that name stay. Raises UserError for a name that cannot be one, and
    where such a file exists with other parameters; then nothing is written. `write=False` checks alone.
    """
    if outputs(name).name in OTHER_FOLDERS:
        raise UserError(f"--as {name}: {outputs(name)} has other contents; choose another name")
    folder, files = _workspace.params_dir() / name, {}
    for dataset in datasets or datasets_of(profile):
        protocol = load(profile, dataset, changes)
        values: dict[str, Any] = {"extends": f"{profile}/{dataset}", **changes}
        if methods is not None:
            chosen = protocol.select_methods(methods)
            unused = {f"grids.{m}" for m in protocol.grids if m not in chosen}
            values = {name: value for name, value in values.items() if name not in unused}
            kept = {name: value for name, value in changes.items() if name not in unused}
            swept = (f"grids.{m}" for m in load(profile, dataset, kept).grids)
            values |= {name: None for name in sorted(swept) if name in unused}
            grids = {m: protocol.grids[m] for m in chosen if m in protocol.grids}
            protocol = protocol.replace(grids=grids)
        path, derived = folder / f"{dataset}.yaml", protocol.replace(profile=name)
        if not path.exists():
            files[path] = values
        elif load(name, dataset) != derived:
            raise UserError(f"{path} has other parameters; choose another name for --as")
    if write:
        for path, values in files.items():
            write_profile(path, values)


def notes(work: Work, methods: Iterable[str] | None = None) -> list[str]:
    """Return what a user should know before the work starts, one line each."""
    lines = [f"left out: {words}" for words in work.left_out.values()]
    stored: dict[str, tuple[int, int]] = {}
    for study in work.studies:
        trained, total = stored.get(study.protocol.dataset, (0, 0))
        stored[study.protocol.dataset] = trained + study.plan.trained, total + len(study.plan.runs)
    for dataset, (trained, total) in stored.items():
        if 0 < trained < total:
            lines.append(f"{dataset}: {trained:,} of {total:,} runs are trained already")
    others = [
        study.name
        for study in work.studies
        if not study.store.exists() and study.store.of_other_protocols()
    ]
    if others:
        lines.append(
            f"results with other parameters are stored of {', '.join(others)} and stay; pages show those "
            "that were asked for last"
        )
    crossing: dict[str, list[str]] = {}
    for dataset, protocol in work.protocols.items():
        if note := protocol.cliff_note(list(methods) if methods else None):
            crossing.setdefault(note, []).append(dataset)
    return lines + [f"{', '.join(names)}: {note}" for note, names in crossing.items()]
