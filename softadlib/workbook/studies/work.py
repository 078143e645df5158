"""What a command is asked to do, checked before any of it starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softadlib import _files
from softadlib._validation import MissingData, UserError, choose
from softadlib.models import build
from softadlib.trainer.device import check_precision, pick_device
from softadlib.workbook.data.data_warnings import data_warnings
from softadlib.workbook.studies.load_splits import load_splits
from softadlib.workbook.studies.params import datasets_of, load, write_profile
from softadlib.workbook.studies.parquet import outputs
from softadlib.workbook.studies.protocol import Protocol
from softadlib.workbook.studies.read import stored_studies
from softadlib.workbook.studies.study import Study, other_protocol, refuse_other_protocol

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
    new_profile: str | None = None,
    shard: tuple[int, int] = (1, 1),
    fresh: bool = False,
    stored: bool = False,
    write: bool = True,
) -> Work:
    """Check a part of a profile and return its studies; None stands for all datasets or methods.

    A dataset that has runs left to train but no data here is left out; if `datasets` names it,
    UserError is raised. Bad input, and a folder with results of another protocol, raise UserError too.

    Args:
        profile: a folder under `params/`.
        datasets: those to take.
        methods: those to take.
        changes: parameters on top of the profile's, as `params.merge` puts them.
        new_profile: the name under which these parameters are written to `params/`, once all is
            checked; None where they are not.
        shard: (i, N) takes every N-th trial, from the i-th on.
        fresh: stored results are going to be deleted, so a broken file is no error.
        stored: nothing is going to be trained, so the data need not be here.
        write: False for a dry run.
    """
    changes = changes or {}
    available = datasets_of(profile)
    for dataset in datasets or ():
        choose("dataset", dataset, available)
    files: dict[Path, dict[str, Any]] = {}
    if new_profile is not None:
        files = derived_files(profile, new_profile, datasets or available, changes)
    studies: list[Study] = []
    left_out: dict[str, str] = {}
    for dataset in dict.fromkeys(datasets or available):
        try:
            protocol = load(profile, dataset, changes).replace(profile=new_profile or profile)
            chosen = protocol.select_methods(methods)
            of_dataset = [Study(protocol, method, shard, fresh) for method in chosen]
            if not stored:
                check(of_dataset)
            studies += of_dataset
        except MissingData as error:
            if datasets is not None:
                raise
            left_out[dataset] = str(error)
    if not studies and not (stored and stored_studies(profile)):
        first, *others = left_out.values()
        more = f"; and so for {len(others)} more" if others else ""
        raise UserError(f"profile {profile!r} has no data here: {first}{more}")
    if write:
        for path, values in files.items():
            write_profile(path, values)
    return Work(new_profile or profile, studies, left_out, {} if new_profile else changes)


def check(studies: Sequence[Study]) -> None:
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
    build(protocol.model, splits.shape, splits.classes, seed=0)


def derived_files(
    profile: str,
    name: str,
    datasets: Sequence[str],
    changes: Mapping[str, Any],
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
        plans = [study.plan for study in work.studies if study.protocol.dataset == dataset]
        trained = sum(plan.trained for plan in plans)
        total = sum(len(plan.runs) for plan in plans)
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
