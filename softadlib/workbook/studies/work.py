"""What a command is asked to do, checked before any of it starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from softadlib import _files
from softadlib._validation import MissingData, UserError, choose
from softadlib.trainer.device import check_precision, pick_device
from softadlib.workbook.data.data_warnings import data_warnings
from softadlib.workbook.studies.load_splits import load_splits
from softadlib.workbook.studies.params import datasets_of, load, write_profile
from softadlib.workbook.studies.parquet import outputs
from softadlib.workbook.studies.protocol import Protocol
from softadlib.workbook.studies.read import stored_studies
from softadlib.workbook.studies.study import Study, other_protocol, refuse_other_protocol
from softadlib.workbook.studies.train_runs import network_of

OTHER_FOLDERS = ("bench", "book", "fig12", "figures", "test-images")
"""Folders of `outputs/` that hold something else than the results of a profile."""


@dataclass(frozen=True)
class Work:
    """The studies of a part of a profile."""

    profile: str
    studies: Sequence[Study]
    left_out: Mapping[str, str]
    """Datasets whose data are missing, and how to get them."""
    changes: Mapping[str, Any]
    """Parameters that the profile's files do not have."""
    new_files: Mapping[Path, Mapping[str, Any]]
    """Files under `params/` that keep the changes as a profile of their own, and their values."""
    is_named: bool
    """Whether the datasets were named, so that none may be left out."""
    without_data: Sequence[Study] = ()
    """Studies of the datasets that are left out."""

    @property
    def protocols(self) -> dict[str, Protocol]:
        """The protocols by dataset."""
        return {study.protocol.dataset: study.protocol for study in self.studies}

    def of(self, dataset: str) -> list[Study]:
        """Return the studies of a dataset."""
        return [study for study in self.studies if study.protocol.dataset == dataset]

    def write(self) -> None:
        """Write the files of a new profile."""
        for path, values in self.new_files.items():
            write_profile(path, values)


def plan_work(
    profile: str,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    *,
    new_profile: str | None = None,
    shard: tuple[int, int] = (1, 1),
    fresh: bool = False,
) -> Work:
    """Return the studies of a part of a profile; nothing is written, and the data need not be here.

    Args:
        profile: a folder under `params/`.
        datasets: those to take; None for all.
        methods: those to take; None for all.
        changes: parameters on top of the profile's, as `params.merge` puts them.
        new_profile: the name under which `Work.write` keeps these parameters; None where it does not.
        shard: (i, N) takes every N-th trial, from the i-th on.
        fresh: stored results are going to be deleted, so a broken file is no error.

    Raises UserError for bad input.
    """
    changes = changes or {}
    available = datasets_of(profile)
    for dataset in datasets or ():
        choose("dataset", dataset, available)
    wanted = list(dict.fromkeys(datasets or available))
    new_files = derived_files(profile, new_profile, wanted, changes) if new_profile else {}
    studies: list[Study] = []
    left_out: dict[str, str] = {}
    for dataset in wanted:
        try:
            protocol = load(profile, dataset, changes).replace(profile=new_profile or profile)
        except MissingData as error:  # images of your own
            if datasets:
                raise
            left_out[dataset] = str(error)
            continue
        studies += [Study(protocol, m, shard, fresh) for m in protocol.select_methods(methods)]
    if not studies and not stored_studies(profile):
        raise no_data(profile, left_out)
    is_named = datasets is not None
    unwritten = {} if new_profile else changes
    return Work(new_profile or profile, studies, left_out, unwritten, new_files, is_named)


def check_work(work: Work) -> Work:
    """Return the work that can be done: datasets with runs left to train but no data here are left out.

    Raises UserError where none is left or one is missing that was named, for a folder with results of
    another protocol, and for a device or network that cannot be used.
    """
    studies: list[Study] = []
    without_data: list[Study] = []
    left_out = dict(work.left_out)
    for dataset in work.protocols:
        try:
            check_studies(work.of(dataset))
            studies += work.of(dataset)
        except MissingData as error:
            if work.is_named:
                raise
            left_out[dataset] = str(error)
            without_data += work.of(dataset)
    if not studies:
        raise no_data(work.profile, left_out)
    return replace(work, studies=studies, left_out=left_out, without_data=without_data)


def no_data(profile: str, left_out: Mapping[str, str]) -> UserError:
    """Return the error to raise where no dataset of a profile is on this machine."""
    first, *others = left_out.values()
    more = f"; and so for {len(others)} more" if others else ""
    return UserError(f"profile {profile!r} has no data here: {first}{more}")


def check_studies(studies: Sequence[Study]) -> None:
    """Check that the studies of a dataset can be trained: protocol, device, data and network.

    Raises UserError, and MissingData where data are missing that a study needs.
    """
    replaced = {study.method for study in studies if study.fresh}
    for study in studies:
        refuse_other_protocol(study, replaced)
    if all(study.finished for study in studies):
        return
    protocol = studies[0].protocol
    check_precision(pick_device(protocol.device), protocol.precision)
    for noise in protocol.label_noise:
        splits = load_splits(protocol, noise, trials=1)
    left = [run for study in studies for run in (*study.todo, *study.replays)]
    if left:  # else chunks are to be put together
        network_of(protocol, splits, left[0])


def derived_files(
    profile: str, name: str, datasets: Sequence[str], changes: Mapping[str, Any]
) -> dict[Path, dict[str, Any]]:
    """Return the files of a profile `name` that extends `profile` by the changes: path → values.

    A file that is there already is left out. Raises UserError where it has other parameters, and for a
    name that cannot be one.
    """
    if outputs(name).name in OTHER_FOLDERS:
        raise UserError(f"--as {name}: {outputs(name)} has other contents; choose another name")
    files = {}
    for dataset in datasets:
        protocol = load(profile, dataset, changes).replace(profile=name)
        values = {"extends": f"{profile}/{dataset}", **changes}
        path = _files.params_dir() / name / f"{dataset}.yaml"
        if not path.exists():
            files[path] = values
            continue
        existing = load(name, dataset)
        differing = [
            field
            for field in Protocol.names()
            if getattr(existing, field) != getattr(protocol, field)
        ]
        if differing:
            raise UserError(
                f"{path} has other parameters ({', '.join(differing)}); choose another name for --as, "
                f"or edit that file, and then: softad train {name}"
            )
    return files


def notes(work: Work) -> list[str]:
    """Return what a user should know before the work starts, one line each."""
    lines = [f"left out: {words}" for words in work.left_out.values()]
    for dataset in work.protocols:
        studies = work.of(dataset)
        trained = sum(study.trained for study in studies)
        total = sum(len(study.runs) for study in studies)
        if 0 < trained < total:
            lines.append(f"{dataset}: {trained:,} of {total:,} runs are trained already")
    for study in work.studies:
        if not study.fresh and (differing := other_protocol(study)):
            lines.append(f"{study.name}: results of another protocol are stored ({differing})")
    return lines


def doubts(work: Work) -> list[str]:
    """Return a line for everything in data of your own that is allowed but may be a mistake."""
    lines = []
    for dataset, protocol in work.protocols.items():
        found = data_warnings(dataset, protocol.folder, protocol.table, protocol.target)
        lines += [f"{dataset}: {line}" for line in found]
    return lines
