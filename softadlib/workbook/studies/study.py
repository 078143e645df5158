"""A study is one dataset × method under one protocol: what is stored of it, and what is left.

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

import pandas as pd

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
class Study:
    """One dataset × method under one protocol.

    Args:
        protocol: what to train.
        method: one of the protocol's.
        shard: (i, N) is every N-th trial, from the i-th on. Its rows are stored as chunks, for a call
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
                    "its data or its methods have changed, or this version of softadlib computes otherwise"
                ]
        return differing

    # What is left. Each is found when it is first asked for; `refreshed` asks the files again.

    @cached_property
    def runs(self) -> list[Run]:
        """All runs of the protocol, or of a shard of its trials."""
        which, count = self.shard
        return [run for run in self.protocol.runs(self.method) if run.trial % count == which - 1]

    @cached_property
    def _stored(self) -> pd.DataFrame:
        """The rows that count; of `fresh` nothing is read: a file may be broken."""
        if self.fresh or other_protocol(self):
            return merge([])
        return self.store.rows([HAS_LOSSES])

    @cached_property
    def _with_measures(self) -> pd.DataFrame:
        return self._stored[is_measured(self._stored)]

    @cached_property
    def _with_losses(self) -> pd.DataFrame:
        stored = self._stored
        return stored[stored[HAS_LOSSES].notna()] if HAS_LOSSES in stored else stored[:0]

    @property
    def has_curves_at_once(self) -> bool:
        """Whether the first pass measures curves of selected runs: there is one value to select."""
        one_value = len(self.protocol.grids.get(self.method, ())) < 2
        return self.protocol.curves == "selected" and one_value

    @property
    def first_epochs(self) -> set[int]:
        """Epochs at which the first pass measures every run."""
        if self.protocol.curves == "all" or self.has_curves_at_once:
            return self.protocol.curve_epochs
        return {self.protocol.epochs}

    @cached_property
    def todo(self) -> list[Run]:
        """Runs without a row at every epoch of the first pass."""
        trained = measured_runs(self._with_measures, self.first_epochs)
        if self.protocol.best_epoch or self.has_curves_at_once:
            trained &= measured_runs(self._with_losses, {self.protocol.epochs})
        return [run for run in self.runs if run.key not in trained]

    @property
    def done(self) -> list[Run]:
        """Runs that are trained."""
        todo = {run.key for run in self.todo}
        return [run for run in self.runs if run.key not in todo]

    @property
    def _open_trials(self) -> set[tuple[float, int]]:
        """Label noise and number of the trials whose selection is open, since runs are missing."""
        return {(run.label_noise, run.trial) for run in self.todo}

    @cached_property
    def replays(self) -> list[Run]:
        """Selected runs that still need their curve."""
        if self._trains_once:
            return []
        open_trials = self._open_trials
        complete = {r.key for r in self.runs if (r.label_noise, r.trial) not in open_trials}
        rows = self._with_measures
        ends = rows[rows["epoch"] == self.protocol.epochs]
        ends = ends.loc[[key in complete for key in run_keys(ends)]]
        selected = set(run_keys(selection.select(ends, self.protocol.ties)))
        drawn = measured_runs(rows, self.protocol.curve_epochs)
        drawn &= measured_runs(self._with_losses, {self.protocol.epochs})
        return [run for run in self.runs if run.key in selected - drawn]

    @property
    def _trains_once(self) -> bool:
        return self.protocol.curves != "selected" or self.has_curves_at_once

    @property
    def left(self) -> int:
        """Number of trainings that are left at most: an open trial may add a replay."""
        may_follow = 0 if self._trains_once else len(self._open_trials)
        return len(self.todo) + len(self.replays) + may_follow

    @property
    def trained(self) -> int:
        """Number of runs that are trained."""
        return len(self.runs) - len(self.todo)

    @property
    def others(self) -> int:
        """Stored runs that the protocol does not ask for: of other values, trials or label noises."""
        stored = set(run_keys(self._with_measures[RUN_KEY].drop_duplicates()))
        return len(stored - {run.key for run in self.protocol.runs(self.method)})

    @cached_property
    def finished(self) -> bool:
        """Whether there was nothing left to train or to write when this was first asked."""
        if self.fresh or self.left or self.store.finished_chunks():
            return False
        stored = self.store.provenance()
        if stored is None:
            return False
        wanted = self.protocol_with(stored)
        same_grid = wanted["grids"].get(self.method, []) == stored.grid
        others = ("trials", "label_noise", "ties", "curves")
        return same_grid and all(wanted[name] == stored.protocol[name] for name in others)

    def refreshed(self) -> "Study":
        """Return the same study, which counts what is stored by now."""
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


def other_protocol(study: Study, replaced: Collection[str] = ()) -> str:
    """Return how the protocol of a folder's results differs from the study's; "" where it does not.

    A folder has one protocol, so that its methods can be compared. Results of the methods `replaced` do
    not count: they are going to be deleted.
    """
    folder = stored_studies(study.protocol.profile, study.protocol.dataset, without=replaced)
    provenances = list(folder.values())
    if study.method not in replaced:
        provenances += study.store.provenances_of_chunks()
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
