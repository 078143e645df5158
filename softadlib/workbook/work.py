"""What a command is asked to do, checked before any of it starts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from softadlib import _workspace
from softadlib._validation import MissingData, UserError, choose
from softadlib.models import build
from softadlib.results.files import outputs
from softadlib.results.read import stored_studies
from softadlib.training.data import load_splits
from softadlib.training.plan import Study, other_protocol, refuse_other_protocol
from softadlib.training.profiles import datasets_of, load, write_profile
from softadlib.training.protocol import Protocol

OTHER_FOLDERS = ("bench", "book", "fig12", "figures")
"""Folders of `outputs/` that hold something else than the results of a profile."""


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
    name: str | None = None,
    shard: tuple[int, int] = (1, 1),
    fresh: bool = False,
    stored: bool = False,
) -> Work:
    """Check a part of a profile and return its studies; None stands for all datasets or methods.

    A dataset whose data are missing is left out where something is left to train. One that is named
    raises UserError, as any bad input does, and a folder with results of another protocol.

    Args:
        profile: a folder under `params/`.
        datasets: those to take.
        methods: those to take.
        changes: parameters on top of the profile's, as `profiles.merge` puts them.
        name: of the profile that these parameters become; None for `profile` itself.
        shard: (i, N) takes every N-th trial, from the i-th on.
        fresh: stored results are going to be deleted, so a broken file is no error.
        stored: nothing is going to be trained, so the data need not be here.
    """
    available = datasets_of(profile)
    for dataset in datasets or ():
        choose("dataset", dataset, available)
    studies: list[Study] = []
    left_out: dict[str, str] = {}
    for dataset in dict.fromkeys(available if datasets is None else datasets):
        try:
            protocol = load(profile, dataset, changes)
            protocol = protocol.replace(profile=name) if name else protocol
            of_dataset = [
                Study(protocol, method, shard, fresh) for method in protocol.select_methods(methods)
            ]
            if not stored:
                check(of_dataset)
        except MissingData as error:
            if datasets is not None:
                raise
            left_out[dataset] = str(error)
        else:
            studies += of_dataset
    if not studies and not (stored and stored_studies(profile)):
        more = f"; and so for {len(left_out) - 1} more" if len(left_out) > 1 else ""
        first = next(iter(left_out.values()))
        raise UserError(f"profile {profile!r} has no data here: {first}{more}")
    return Work(name or profile, studies, left_out)


def check(studies: Sequence[Study]) -> None:
    """Check that the studies of a dataset can be trained: protocol, data and network.

    Raises UserError, and MissingData where data are missing that a study needs.
    """
    for study in studies:
        refuse_other_protocol(study)
    if all(study.finished for study in studies):
        return
    protocol = studies[0].protocol
    for noise in protocol.label_noise:
        splits = load_splits(protocol, noise, trials=1)
    build(protocol.model, splits.shape, splits.classes, seed=0)


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
    for study in work.studies:
        if not study.fresh and (differing := other_protocol(study)):
            lines.append(f"{study.name}: results of another protocol are stored ({differing})")
    crossing: dict[str, list[str]] = {}
    for dataset, protocol in work.protocols.items():
        if note := protocol.cliff_note(list(methods) if methods else None):
            crossing.setdefault(note, []).append(dataset)
    return lines + [f"{', '.join(names)}: {note}" for note, names in crossing.items()]
