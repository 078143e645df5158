"""What one dataset × method consists of: its runs, what is stored of them, and what is left."""

import contextlib
import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from softadlib._validation import UserError
from softadlib.data.images import own_folder
from softadlib.data.synthetic import SYNTHETIC
from softadlib.results import sample_losses, selection
from softadlib.results.folder import ResultFolder
from softadlib.results.schema import MEASURES, RUN_KEY, missing_keys, run_keys
from softadlib.results.table import merge
from softadlib.training import auto_theta, heldout
from softadlib.training.checks import AUTO
from softadlib.training.device import pick_device
from softadlib.training.memory import Flops, protocol_flops
from softadlib.training.protocol import Protocol, Run

CPU_TASK = 8
"""Maximum of runs that a CPU process takes at a time: what an accident may cost."""


def curve_epochs(protocol: Protocol) -> set[int]:
    """Return the epochs at which curves are measured: 0, every `curve_every`, and the last."""
    return {*range(0, protocol.epochs, protocol.curve_every), protocol.epochs}


def replay_pays(protocol: Protocol, gradients: int, share: float) -> bool:
    """Tell whether training all runs twice costs less than measuring the curves of all.

    The unit is one sample's forward pass; a backward pass costs two. Per run:

        trained  = 3 × n_train × gradients × epochs
        measured = (n_train + n_val + n_test) × epochs of a curve

    A replay trains everything again and measures the curves of `share` of the runs. So it pays where
    trained < (1 − share) × measured. It never does on whole image sets, whose sizes are 0 in a
    protocol: they have at least as many samples to train on as to test on.
    """
    sizes = (protocol.n_train, protocol.n_val, protocol.n_test)
    if not all(sizes):
        return False
    trained = 3 * protocol.n_train * gradients * protocol.epochs
    measured = sum(sizes) * len(curve_epochs(protocol))
    return trained < (1 - share) * measured


def loss_epochs(protocol: Protocol) -> set[int]:
    """Return the epochs at which losses of single samples are summarised.

    0, the last, and those of the curve nearest to a quarter, half and three quarters of training.
    """
    epochs = sorted(curve_epochs(protocol))
    return {epochs[round(quarter * (len(epochs) - 1) / 4)] for quarter in range(5)}


@dataclass(frozen=True)
class FirstPass:
    """The ends of runs, which their replays must reproduce."""

    path: str
    """The result folder, for the message."""
    ends: pd.DataFrame
    compared: tuple[str, ...]
    """The measures that must agree."""

    def check(self, replayed: pd.DataFrame) -> None:
        """Raise UserError where a replay ends elsewhere than its run did."""
        if not len(replayed):
            return
        last = selection.final(replayed).set_index(RUN_KEY)[list(MEASURES)]
        expected = self.ends.set_index(RUN_KEY)[list(MEASURES)].loc[last.index]
        pair = (last[list(self.compared)], expected[list(self.compared)])
        same = np.isclose(*pair, rtol=1e-9, atol=0, equal_nan=True).all(axis=1)
        if not same.all():
            _, trial, knob = last.index[~same][0]
            raise UserError(
                f"{self.path}: the replay of {replayed['method'].iloc[0]} trial {trial} at {knob:g} ended at "
                f"test loss {last['loss_test'][~same].iloc[0]:.6g}, the first pass at "
                f"{expected['loss_test'][~same].iloc[0]:.6g}; the first pass was made on another machine or torch, "
                "or in other lots: set `curves: none`, or delete that folder and run again"
            )


@dataclass(frozen=True)
class StudyState:
    """What is stored of a study, and what is left."""

    trained: int
    """Runs that are trained and stored, whatever is left to replay."""
    runs_left: int
    replays_left: int
    """The maximum: each run that is left may be selected."""
    done: bool
    """Whether every wanted row is stored, and its provenance written."""


@dataclass
class Study:
    """The work left for one protocol and method, given the rows already stored.

    Args:
        protocol: what to train.
        method: one of the protocol's.
        device: what it is trained on, by default this machine's.
        trials: only these (label noise, trial), as a shard trains them.
    """

    protocol: Protocol
    method: str
    device: torch.device | None = None
    trials: Collection[tuple[float, int]] | None = None

    def __post_init__(self) -> None:
        protocol = self.protocol
        self.gradients = protocol.method(self.method).gradients
        self.folder = ResultFolder(
            protocol.profile, protocol.dataset, self.method, protocol.fingerprint(self.method)
        )
        self.device = self.device or pick_device(protocol.device)
        # A worker's machine may have a GPU that this one has not, or the other way round, and another
        # workbook's root.
        images = str(own_folder(protocol.folder)) if protocol.folder else ""
        self.worker_protocol = protocol.replace(device=self.device.type, folder=images)
        self.resolve()
        share = self.n_selected / len(self.runs)
        on_cpu = self.device.type == "cpu"
        replays = on_cpu or replay_pays(protocol, self.gradients, share)
        replays = replays and protocol.curves == "selected" and share < 1
        self.replays_lots = replays and not on_cpu
        self.first_epochs = {protocol.epochs}
        if protocol.curves != "none" and not replays:
            self.first_epochs = curve_epochs(protocol)
        self.replay_epochs = curve_epochs(protocol) if replays else set()
        # Losses of single samples are summarised for selected runs alone: those that are replayed, and
        # those of a method with one run in every trial.
        self.loss_epochs = loss_epochs(protocol)
        self.losses_in_first_pass = share == 1 and protocol.curves != "none"

    def resolve(self) -> None:
        """List the runs; suggested knobs are known once they are stored."""
        runs = self.protocol.runs(self.method)
        if self.trials is not None:
            runs = tuple(r for r in runs if (r.label_noise, r.trial) in self.trials)
        self.runs = auto_theta.resolve_auto(self.protocol, runs, self.folder)

    @functools.cached_property
    def work(self) -> Flops:
        """Floating-point operations of a run, for the speed that is stored."""
        return protocol_flops(self.protocol)

    def stored_rows(self) -> tuple[pd.DataFrame, bool]:
        """Return the stored rows of this study's runs, and whether there are rows of others.

        Rows of results that were set aside count too: nothing of them is trained again.
        """
        stored = self.folder.stored_rows()
        rows = self._rows_of_runs(stored)
        earlier = []
        for folder in self.folder.aside():
            with contextlib.suppress(UserError):  # the runs of a broken file are trained again
                earlier.append(self._rows_of_runs(folder.stored_rows()))
        merged = merge([*earlier, rows]) if earlier else rows.reset_index(drop=True)
        return merged, len(rows) < len(stored)

    def _rows_of_runs(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of this study's runs."""
        wanted = {run.key for run in self.runs}
        return rows[np.array([key in wanted for key in run_keys(rows)], dtype=bool)]

    def missing(self, rows: pd.DataFrame, runs: Sequence[Run], epochs: set[int]) -> list[Run]:
        """Return the runs of which a row at one of `epochs` is missing."""
        keys = missing_keys(rows, [run.key for run in runs], epochs)
        return [run for run in runs if run.key in keys]

    def selected(self, rows: pd.DataFrame) -> list[Run]:
        """Return the runs whose curves are shown."""
        chosen = set(run_keys(selection.select(rows, self.protocol.ties)))
        return [run for run in self.runs if run.key in chosen]

    def with_lots(self, runs: Sequence[Run]) -> list[Run]:
        """Return `runs`; where lots are replayed, with all other runs of their label noises.

        On a GPU the kernels, and with them the last bits of a run, depend on the size of its lot. So
        the first pass and the replay must divide the same runs into lots. Rows of other lots, and of
        other devices, are replaced.
        """
        if not self.replays_lots:
            return list(runs)
        noises = {run.label_noise for run in runs}
        return [run for run in self.runs if run.label_noise in noises]

    def without_losses(self, rows: pd.DataFrame) -> list[Run]:
        """Return the selected runs whose losses of single samples are not stored."""
        selected = self.selected(rows)
        stored = sample_losses.stored(self.folder)
        return self.missing(stored, selected, self.loss_epochs)

    def replays(self, rows: pd.DataFrame, trained: Sequence[Run]) -> list[Run]:
        """Return the runs to train again, once `trained` are: the selected whose curves are missing."""
        missing = self.missing(rows, self.selected(rows), self.replay_epochs)
        return self.with_lots([*missing, *trained]) if self.replays_lots else missing

    def replays_left(self, rows: pd.DataFrame, todo: Sequence[Run]) -> int:
        """Return the maximum of replays to come: every run still to train may be selected."""
        if not self.replay_epochs:
            return 0
        open_trials = {(run.label_noise, run.trial) for run in todo}
        selected = [r for r in self.selected(rows) if (r.label_noise, r.trial) not in open_trials]
        missing = self.missing(rows, selected, self.replay_epochs)
        if self.replays_lots:
            return len(self.with_lots([*todo, *missing]))
        return len(open_trials) + len(missing)

    def first_pass(self, rows: pd.DataFrame) -> FirstPass:
        """Return what the replays of selected runs must reproduce.

        In a replay of whole lots, equal weights are measured by other kernels than in the first pass,
        because fewer runs are measured. So only their norm, which is summed in float64, must agree.
        """
        compared = ("model_norm",) if self.replays_lots else tuple(MEASURES)
        return FirstPass(str(self.folder.path), selection.final(rows), compared)

    def state(self) -> StudyState:
        """Read the stored rows and return what they leave to do. Raises UserError for a broken file."""
        rows, others = self.stored_rows()
        missing = self.missing(rows, self.runs, self.first_epochs)
        todo = self.with_lots(missing)
        replays = self.replays_left(rows, todo)
        done = not (todo or replays or others) and self._is_finished(rows)
        return StudyState(len(self.runs) - len(missing), len(todo), replays, done)

    def done(self) -> bool:
        """Tell whether nothing is left: see `StudyState.done`."""
        return self.state().done

    def _is_finished(self, rows: pd.DataFrame) -> bool:
        """Tell whether the table and its provenance are written, for these rows and this choice."""
        if not self.folder.provenance.exists() or not self.folder.metrics.exists():
            return False
        facts = self.folder.read_provenance()
        if facts.protocol.get("ties", self.protocol.ties) != self.protocol.ties:
            return False  # other runs were selected
        # Numbers differ after a kill between the table and its provenance.
        n_rows = len(rows) if facts.rows is None else facts.rows
        return (n_rows, facts.runs) == (len(rows), len(self.runs))

    @property
    def n_selected(self) -> int:
        """How many runs are selected: one of each label noise and trial."""
        return len({(run.label_noise, run.trial) for run in self.runs})

    @property
    def units_per_run(self) -> int:
        """Gradients per step × epochs."""
        return self.gradients * self.protocol.epochs

    def runs_work(self) -> int:
        """Return the units of all runs and replays."""
        replayed = self.n_selected if self.replay_epochs else 0
        replayed = len(self.runs) if self.replays_lots else replayed
        return (len(self.runs) + replayed) * self.units_per_run

    def total_work(self) -> int:
        """Return the units of the whole study: runs, replays, and models trained before them."""
        ordinary = 1 if self.protocol.grids.get(self.method) in AUTO else 0
        models = (ordinary + heldout.n_models(self.protocol, self.method)) * self.n_selected
        return self.runs_work() + models * self.protocol.epochs

    def losses_work(self) -> int:
        """Return the units of training every selected run again for its losses."""
        runs = self.runs if self.replays_lots else range(self.n_selected)
        return len(runs) * self.units_per_run

    def stored_work(self, state: StudyState, losses: bool) -> int:
        """Return the units that earlier calls have done and stored."""
        if not state.done:
            left = state.runs_left + state.replays_left
            return self.runs_work() - left * self.units_per_run
        if not losses:
            return self.total_work()
        without = self.with_lots(self.without_losses(self.stored_rows()[0]))
        return self.total_work() + self.losses_work() - len(without) * self.units_per_run

    def chunks(self, runs: Sequence[Run], workers: int) -> list[list[Run]]:
        """Split runs of one label noise into tasks: on a CPU a few for each process."""
        size = self.protocol.stack or max(1, -(-len(runs) // workers))
        if self.worker_protocol.device == "cpu" and not self.protocol.stack:
            long = self.protocol.dataset not in SYNTHETIC
            even = CPU_TASK if workers == 1 else -(-len(runs) // (4 * workers))
            size = 1 if long else min(CPU_TASK, even)
        return [list(runs[i : i + size]) for i in range(0, len(runs), size)]
