"""A study is one dataset × method under one protocol, and its plan is what is left of it.

The paper reads the final epoch of every run and the curves of the selected ones. So the first pass
measures the last epoch only. The replay trains the selected runs again and measures them along the
way: the same training with other runs and epochs. A run of a grid of one value is measured along the
way at once.
"""

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from softadlib._validation import MissingData, UserError
from softadlib.results import selection
from softadlib.results.files import Provenance, Session, merge
from softadlib.results.read import stored_studies
from softadlib.results.schema import RUN_KEY, missing_keys, run_keys
from softadlib.results.store import StudyStore
from softadlib.training.protocol import Protocol, Run, trial_seeds


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
    others: int = 0
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
        if self.fresh and not self.is_whole:
            raise UserError("--fresh deletes what other shards did; leave one of the two out")

    @property
    def name(self) -> str:
        """The study in words."""
        return f"{self.protocol.dataset} × {self.method}"

    @property
    def is_whole(self) -> bool:
        """Whether the study is no shard."""
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
        """Return where results of the same folder were trained otherwise; an empty list for nowhere."""
        if stored.method != self.method:
            return self.protocol.differences(stored.protocol)
        differing = self.protocol.differences(stored.protocol, self.method)
        with contextlib.suppress(MissingData):  # stored results can be read without their data
            if not differing and stored.fingerprint != self.fingerprint:
                differing = ["its data, or the version of the numerics"]
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
        same = ("trials", "label_noise", "ties", "curves")
        grids = wanted["grids"].get(self.method, []), stored.grid
        return grids[0] == grids[1] and all(wanted[f] == stored.protocol[f] for f in same)

    def as_it_is_now(self) -> "Study":
        """Return the same study, whose plan counts what is stored by now."""
        return replace(self, fresh=False)

    def protocol_with(self, stored: Provenance | None) -> dict[str, Any]:
        """Return its protocol with the trials, label noises and values that were asked for earlier, too."""
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
            seeds=list(trial_seeds(protocol["trials"])),
            sessions=list(sessions),
        )


def make_plan(study: Study) -> Plan:
    """Return what is left of a study."""
    protocol, method, store = study.protocol, study.method, study.store
    which, count = study.shard
    runs = [run for run in protocol.runs(method) if run.trial % count == which - 1]
    counts = not study.fresh  # then nothing is read: a file may be broken
    if counts:
        finished = store.provenance()
        stored = [*([finished] if finished else []), *store.provenances_of_parts()]
        counts = not any(study.differences(of) for of in stored)
    rows = store.rows() if counts else merge([])
    losses = store.keys_of_losses() if counts else merge([])
    first = first_epochs(protocol, method)
    measured_once = protocol.curves == "selected" and first == protocol.curve_epochs
    need_losses = protocol.best_epoch or measured_once
    todo = _missing(runs, rows, first, losses if need_losses else None)
    known = set(run_keys(rows[RUN_KEY].drop_duplicates()))
    others = len(known - {run.key for run in protocol.runs(method)})
    if protocol.curves != "selected" or measured_once:
        return Plan(runs, todo, [], 0, others)
    open_trials = {(run.label_noise, run.trial) for run in todo}
    keys = {run.key for run in runs if (run.label_noise, run.trial) not in open_trials}
    ends = rows[rows["epoch"] == protocol.epochs]
    complete = ends[[key in keys for key in run_keys(ends)]]
    chosen = set(run_keys(selection.select(complete, protocol.ties))) if len(complete) else set()
    selected = [run for run in runs if run.key in chosen]
    replays = _missing(selected, rows, protocol.curve_epochs, losses)
    return Plan(runs, todo, replays, len(open_trials), others)


def first_epochs(protocol: Protocol, method: str) -> set[int]:
    """Return the epochs at which every run is measured."""
    single = len(protocol.grids.get(method, ())) < 2
    if protocol.curves == "all" or (protocol.curves == "selected" and single):
        return protocol.curve_epochs
    return {protocol.epochs}


def _missing(
    runs: Sequence[Run],
    rows: pd.DataFrame,
    epochs: Collection[int],
    losses: pd.DataFrame | None = None,
) -> list[Run]:
    """Return the runs that lack rows of some epochs, or losses of single samples of the last one."""
    keys = missing_keys(rows, [run.key for run in runs], epochs)
    if losses is not None:
        keys |= missing_keys(losses, [run.key for run in runs], {max(epochs)})
    return [run for run in runs if run.key in keys]


def other_protocol(study: Study) -> str:
    """Return how the protocol of a folder's results differs from the study's; "" where it does not.

    A folder has one protocol, so that its methods can be compared.
    """
    folder = stored_studies(study.protocol.profile, study.protocol.dataset).values()
    for stored in [*folder, *study.store.provenances_of_parts()]:
        if differing := study.differences(stored):
            return "; ".join(differing)
    return ""


def refuse_other_protocol(study: Study) -> None:
    """Raise UserError where the folder of a study holds results of another protocol."""
    if not study.fresh and (differing := other_protocol(study)):
        raise UserError(
            f"{study.name}: profile {study.protocol.profile} has results of another protocol "
            f"({differing}); give the changed one a name of its own, --as NAME, or replace the "
            "stored results, --fresh"
        )
