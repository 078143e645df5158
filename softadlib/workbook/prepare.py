"""What a command is asked to train, checked before any of it starts: for `run`, `train`, `show`."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softadlib import _workspace
from softadlib._validation import MissingData, UserError, choose
from softadlib.data.images import own_folder, prepared_file
from softadlib.models import build
from softadlib.results.paths import OTHER_FOLDERS, profile_dir
from softadlib.training.executors import shards
from softadlib.training.inputs import load_splits
from softadlib.training.profiles import datasets_of, load
from softadlib.training.protocol import Protocol
from softadlib.training.study_plan import Study, StudyState

if TYPE_CHECKING:
    from softadlib.training.executors.ray import RayCluster


@dataclass(frozen=True)
class Selection:
    """The part of a profile that a command is about; None stands for all."""

    profile: str
    datasets: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    overrides: Mapping[str, Any] | None = None
    shard: str | None = None
    store_as: str | None = None
    """Profile that the results belong to, where it is not `profile`."""


@dataclass(frozen=True)
class Work:
    """The studies of a selection, and the datasets that are left out since their data are missing."""

    selection: Selection
    protocols: Mapping[str, Protocol]
    studies: Sequence[Study]
    left_out: Sequence[str]

    @functools.cached_property
    def states(self) -> list[StudyState]:
        """What was stored of each study when it was first asked for. Raises UserError for a broken table."""
        return [study.state() for study in self.studies]

    @property
    def profile(self) -> str:
        return self.selection.profile

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(dataset, method) of every study."""
        return [(study.protocol.dataset, study.method) for study in self.studies]

    def notes(self) -> Iterator[str]:
        """Yield what a user should know before the work starts, one line each."""
        for words in self.left_out:
            yield f"left out: {words}"
        counts: dict[str, tuple[int, int]] = {}
        for study, state in zip(self.studies, self.states):
            stored, total = counts.get(study.protocol.dataset, (0, 0))
            counts[study.protocol.dataset] = stored + state.trained, total + len(study.runs)
        for dataset, (stored, total) in counts.items():
            if 0 < stored < total:
                yield f"{dataset}: {stored:,} of {total:,} runs are trained already"
        yield from self._notes_on_other_parameters()
        for dataset, protocol in self.protocols.items():
            prepared = prepared_file(dataset)
            if protocol.folder and prepared.exists() and own_folder(protocol.folder).exists():
                again = f"softad data prepare {dataset} --from-folder {protocol.folder}"
                yield f"{dataset}: images are read from {prepared}, not from the folder; it is made anew by: {again}"
        notes: dict[str, list[str]] = {}
        for dataset, protocol in self.protocols.items():
            if note := protocol.cliff_note(self.selection.methods):
                notes.setdefault(note, []).append(dataset)
        for note, datasets in notes.items():
            yield f"{', '.join(datasets)}: {note}"

    def _notes_on_other_parameters(self) -> Iterator[str]:
        """Say where stored results have other parameters than these, and what becomes of them."""
        replaced, returning = [], []
        for study in self.studies:
            pair = f"{study.protocol.dataset} × {study.method}"
            if study.folder.stored_fingerprint() not in (None, study.folder.fingerprint):
                replaced.append(pair)
            if study.folder.can_take_back():
                returning.append(pair)
        if replaced:
            yield (
                f"results with other parameters, or of other images, are stored of {', '.join(replaced)}; "
                "training sets them aside, and takes them back when they are asked for again; --as NAME keeps both"
            )
        if returning:
            yield f"results with these parameters were set aside of {', '.join(returning)}; they are taken back"


def prepare(
    selection: Selection,
    cluster: "RayCluster | None" = None,
    *,
    fresh: bool = False,
    read_only: bool = False,
) -> Work:
    """Check a selection and return its studies. Raises UserError for any bad input.

    `fresh`: stored results are going to be forgotten, so a broken table is no error. `read_only`:
    nothing will be trained, so the disk need not be writable.
    """
    part = None
    if selection.shard is not None:
        if fresh:
            raise UserError(
                "--fresh forgets what other shards did; delete the folder, or leave it out"
            )
        which, count = shards.parse(selection.shard)
        every = shards.split_profile(
            selection.profile,
            selection.datasets,
            selection.methods,
            selection.overrides or {},
            count,
        )[1]
        part = shards.trials_by_method(every[which - 1])
    protocols, left_out = _protocols(selection)
    pairs = [(p, m) for p in protocols.values() for m in p.select_methods(selection.methods)]
    if not read_only:
        _workspace.check_writable(profile_dir(selection.store_as or selection.profile))
    studies = []
    for protocol, method in pairs:
        trials = None if part is None else part.get((protocol.dataset, method))
        if part is None or trials:
            device = cluster.executor(protocol).device if cluster else None
            studies.append(Study(protocol, method, device, trials))
    work = Work(selection, protocols, studies, left_out)
    if not fresh:
        _ = work.states  # raises for a broken table
    return work


def _protocols(selection: Selection) -> tuple[dict[str, Protocol], list[str]]:
    """Return the checked protocols by dataset, and why datasets are left out.

    A dataset of the profile whose data are missing is left out. One that was asked for by name
    raises UserError.
    """
    available = datasets_of(selection.profile)
    for name in selection.datasets or ():
        choose("dataset", name, available)
    protocols, left_out = {}, []
    for dataset in dict.fromkeys(available if selection.datasets is None else selection.datasets):
        try:
            protocol = load(selection.profile, dataset, selection.overrides)
            if selection.store_as:
                protocol = protocol.model_copy(update={"profile": selection.store_as})
            for noise in protocol.label_noise:
                splits = load_splits(protocol, noise, trials=1)
        except MissingData as error:
            if selection.datasets is not None:
                raise
            left_out.append(str(error))
            continue
        build(protocol.model, splits.shape, splits.classes, seed=0)
        protocols[dataset] = protocol
    if not protocols:
        raise UserError(f"profile {selection.profile!r} has no data here: {'; '.join(left_out)}")
    return protocols, left_out


def derive_profile(asked: Selection, name: str, *, write: bool = True) -> Selection:
    """Return `asked` as a profile of its own, `params/<name>/`, which holds the changed parameters.

    `write=False` writes nothing; where a file is missing, the selection then has that profile's results
    alone. Raises UserError where the profile exists with other parameters.
    """
    import yaml

    params = _workspace.params_dir()
    target = profile_dir(name).name
    if target in OTHER_FOLDERS:
        raise UserError(f"--as {name}: {profile_dir(name)} has other contents; choose another name")
    derived = {}
    for dataset in asked.datasets or datasets_of(asked.profile):
        protocol = load(asked.profile, dataset, asked.overrides)
        values = {**protocol.to_dict(), "profile": target}
        if asked.methods is not None:
            methods = protocol.select_methods(asked.methods)
            values["grids"] = {m: grid for m, grid in values["grids"].items() if m in methods}
        derived[dataset] = Protocol.from_dict(values)
    missing = {}
    for dataset, protocol in derived.items():
        path = params / target / f"{dataset}.yaml"
        if not path.exists():
            missing[path] = protocol
        elif load(target, dataset) != protocol:
            raise UserError(f"{path} has other parameters; choose another name for --as")
    if missing and not write:
        return dataclasses.replace(asked, store_as=target)
    for path, protocol in missing.items():
        text = yaml.safe_dump(protocol.to_dict(), sort_keys=False, allow_unicode=True)
        _workspace.write(path, text)
    return Selection(target, asked.datasets, asked.methods, None, asked.shard)
