"""A study is one dataset × method under one protocol, and its plan is what is left of it.

The paper reads the final epoch of every run and the curves of the selected ones. So the first pass
measures the last epoch only. The replay trains the selected runs again, in the same way, and measures
them at the epochs of their curves. If a grid has one value, there is nothing to select: the first pass
measures the curves.
"""

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from softadlib._validation import MissingData, UserError
from softadlib.workbook.studies import selection
from softadlib.workbook.studies.parquet import is_measured, merge
from softadlib.workbook.studies.protocol import Protocol, Run
from softadlib.workbook.studies.provenance import Provenance, Session
from softadlib.workbook.studies.read import stored_studies
from softadlib.workbook.studies.schema import HAS_LOSSES, RUN_KEY, measured_runs, run_keys
from softadlib.workbook.studies.seeds import trial_seeds
from softadlib.workbook.studies.store import StudyStore


@dataclass(frozen=True)
class Plan:
    """What is left of a study."""

    runs: Sequence[Run]
    """All runs of the protocol, or of a shard of its trials."""
    todo: Sequence[Run]
    """Runs without a row at every epoch of the first pass."""
    replays: Sequence[Run]
    """Selected runs that still need their curve."""
    open_trials: int
    """Trials whose selection is open, since runs are missing. Each may add a replay."""
    others: int
    """Stored runs that the protocol does not ask for: of other values, trials or label noises."""

    @property
    def trained(self) -> int:
        """Number of runs that are trained."""
        return len(self.runs) - len(self.todo)

    @property
    def done(self) -> list[Run]:
        """Runs that are trained."""
        todo = {run.key for run in self.todo}
        return [run for run in self.runs if run.key not in todo]

    @property
    def left(self) -> int:
        """Number of trainings that are left at most, replays included."""
        return len(self.todo) + len(self.replays) + self.open_trials


@dataclass(frozen=True)
class Study:
    """One dataset × method under one protocol.

    Args:
        protocol: what to train.
        method: one of the protocol's.
        shard: (i, N) is every N-th trial, from the i-th on. Its rows are stored as parts, for a call
            of the whole study to put together.
        fresh: stored results are going to be deleted, and count as none.
    """

    protocol: Protocol
    method: str
    shard: tuple[int, int] = (1, 1)
    fresh: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.fresh, bool):  # papermill gives words for all but True and False
            raise UserError(f"fresh must be True or False, got {self.fresh!r}")
        if self.fresh and not self.is_whole:
            raise UserError("--fresh deletes what other shards did; leave one of the two out")

    @property
    def name(self) -> str:
        """The study in words."""
        return f"{self.protocol.dataset} × {self.method}"

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole study, not a shard."""
        return self.shard == (1, 1)

    @property
    def store(self) -> StudyStore:
        """Where its results are stored."""
        return StudyStore(self.protocol.profile, self.protocol.dataset, self.method)

    @cached_property
    def fingerprint(self) -> str:
        """What a run of it does, hashed."""
        return self.protocol.fingerprint(self.method)

    def differences(self, stored: Provenance) -> list[str]:
        """Return the differences between the protocol of the stored results and this one, a text for each."""
        if stored.method != self.method:
            return self.protocol.differences(stored.protocol)
        differing = self.protocol.differences(stored.protocol, self.method)
        with contextlib.suppress(MissingData):  # stored results can be read without their data
            if not differing and stored.fingerprint != self.fingerprint:
                differing = [
                    "its data have changed, or this version of softadlib computes otherwise"
                ]
        return differing

    @cached_property
    def plan(self) -> Plan:
        """What was left when this was first asked."""
        return make_plan(self)

    @cached_property
    def finished(self) -> bool:
        """Whether there was nothing left to train or to write when this was first asked."""
        if self.fresh or self.plan.left or self.store.finished_parts():
            return False
        stored = self.store.provenance()
        if stored is None:
            return False
        wanted = self.protocol_with(stored)
        same_grid = wanted["grids"].get(self.method, []) == stored.grid
        others = ("trials", "label_noise", "ties", "curves")
        return same_grid and all(wanted[name] == stored.protocol[name] for name in others)

    def as_it_is_now(self) -> "Study":
        """Return the same study, whose plan counts what is stored by now."""
        return replace(self, fresh=False)

    def protocol_with(self, stored: Provenance | None) -> dict[str, Any]:
        """Return its protocol, widened to the trials, label noises and values that are stored already."""
        wanted = self.protocol.to_dict()
        if stored is not None:
            noises = {*stored.protocol["label_noise"], *wanted["label_noise"]}
            wanted["trials"] = max(stored.protocol["trials"], wanted["trials"])
            wanted["label_noise"] = sorted(noises)
            if self.method in wanted["grids"]:
                values = {*stored.grid, *wanted["grids"][self.method]}
                wanted["grids"] = {**wanted["grids"], self.method: sorted(values)}
        return wanted

    def provenance(self, sessions: Sequence[Session]) -> Provenance:
        """Return what is to be stored beside its rows."""
        protocol = self.protocol_with(self.store.provenance())
        return Provenance(
            profile=self.protocol.profile,
            dataset=self.protocol.dataset,
            method=self.method,
            fingerprint=self.fingerprint,
            protocol=protocol,
            seeds=list(trial_seeds(protocol["trials"], protocol["base_seed"])),
            sessions=list(sessions),
        )


def make_plan(study: Study) -> Plan:
    """Return what is left of a study."""
    protocol = study.protocol
    which, count = study.shard
    asked_for = protocol.runs(study.method)
    runs = [run for run in asked_for if run.trial % count == which - 1]
    stored = merge([])
    if not study.fresh and not other_protocol(study):  # fresh reads nothing: a file may be broken
        stored = study.store.rows([HAS_LOSSES])
    rows = stored[is_measured(stored)]
    losses = stored[stored[HAS_LOSSES].notna()] if HAS_LOSSES in stored else stored[:0]
    known = set(run_keys(rows[RUN_KEY].drop_duplicates()))
    others = len(known - {run.key for run in asked_for})

    at_once = has_curves_at_once(protocol, study.method)
    trained = measured_runs(rows, first_epochs(protocol, study.method))
    if protocol.best_epoch or at_once:
        trained &= measured_runs(losses, {protocol.epochs})
    todo = [run for run in runs if run.key not in trained]
    if protocol.curves != "selected" or at_once:
        return Plan(runs, todo, [], 0, others)
    open_trials = {(run.label_noise, run.trial) for run in todo}
    complete = {run.key for run in runs if (run.label_noise, run.trial) not in open_trials}
    ends = rows[rows["epoch"] == protocol.epochs]
    ends = ends.loc[[key in complete for key in run_keys(ends)]]
    selected = set(run_keys(selection.select(ends, protocol.ties)))
    drawn = measured_runs(rows, protocol.curve_epochs) & measured_runs(losses, {protocol.epochs})
    replays = [run for run in runs if run.key in selected - drawn]
    return Plan(runs, todo, replays, len(open_trials), others)


def has_curves_at_once(protocol: Protocol, method: str) -> bool:
    """Tell whether the first pass measures curves of selected runs: there is one value to select."""
    return protocol.curves == "selected" and len(protocol.grids.get(method, ())) < 2


def first_epochs(protocol: Protocol, method: str) -> set[int]:
    """Return the epochs at which the first pass measures every run."""
    if protocol.curves == "all" or has_curves_at_once(protocol, method):
        return protocol.curve_epochs
    return {protocol.epochs}


def other_protocol(study: Study, replaced: Collection[str] = ()) -> str:
    """Return how the protocol of a folder's results differs from the study's; "" where it does not.

    A folder has one protocol, so that its methods can be compared. Results of the methods `replaced` do
    not count: they are going to be deleted.
    """
    folder = stored_studies(study.protocol.profile, study.protocol.dataset, without=replaced)
    provenances = list(folder.values())
    if study.method not in replaced:
        provenances += study.store.provenances_of_parts()
    for stored in provenances:
        if differing := study.differences(stored):
            return "; ".join(differing)
    return ""


def refuse_other_protocol(study: Study, replaced: Collection[str] = ()) -> None:
    """Raise UserError where the folder of a study holds results of another protocol."""
    if differing := other_protocol(study, replaced):
        raise UserError(
            f"{study.name}: profile {study.protocol.profile} has results of another protocol "
            f"({differing}); give the changed one its own name with --as NAME, or replace the stored "
            "results of all methods: softad train with the same changes and --fresh, without --method"
        )
