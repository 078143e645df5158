"""What a selected SoftAD run did to its gradient, and ERM trained with as much less of a step.

SoftAD weighs every sample's gradient by |φ| < 1, so under SGD it takes shorter steps than ERM at equal lr.
Adam divides a common factor out again. Here the run is trained once more with its weights recorded, then ERM
with lr × mean |φ| and, for comparison, with loss × mean |φ|. One table a dataset,
outputs/<profile>/<dataset>/controls.parquet.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from softadlib import _workspace
from softadlib._validation import UserError, choose
from softadlib.data.splits import Splits
from softadlib.experiments.audit.claims import BY_LOSS, BY_LR, REPLAY
from softadlib.methods import METHODS
from softadlib.results import reader, selection
from softadlib.results.folder import ResultFolder
from softadlib.results.paths import profile_dir
from softadlib.results.schema import COLUMNS, MEASURES, RUN_KEY
from softadlib.results.selection import TIES
from softadlib.results.table import pack, unpack
from softadlib.training.device import deterministic_math, pick_device
from softadlib.training.engines.mlp_cpu import closed_form_weights
from softadlib.training.executors.local import explain_killed_worker
from softadlib.training.inputs import load_splits
from softadlib.training.protocol import Protocol, Run
from softadlib.training.trainer import Trainer

WEIGHT_STATS = ("weight", "ascent", "ascent_weight")
"""Of an epoch: mean |w| over samples, the share with w < 0, mean |w| of those (NaN for none)."""
TABLE = (
    *COLUMNS[:3],
    "label_noise",
    *COLUMNS[3:5],
    "control",
    "factor",
    *WEIGHT_STATS,
    *COLUMNS[5:],
)


class WeightRecorder:
    """An objective that adds up w = n·∂/∂ℓᵢ of every batch it sees; no number of the run changes.

    Engines that take gradients in closed form call its `weights`, other engines the objective itself.
    """

    def __init__(self, objective: Callable[..., Tensor]):
        self.objective = objective
        self.closed_form = closed_form_weights(objective)
        self.epochs: list[dict[str, float]] = []
        self._sums = [0.0] * 4

    def weights(self, losses: Tensor, knob: Tensor, **settings: Any) -> Tensor:
        """Return the objective's weights, (n,) → (n,), and add them up."""
        assert self.closed_form is not None
        w = self.closed_form(losses, knob, **settings)
        below = w < 0
        batch = torch.stack([w.abs().sum(), below.sum(), w.abs()[below].sum()]).tolist()
        self._sums = [a + b for a, b in zip(self._sums, [len(w), *batch])]
        return w

    def __call__(self, losses: Tensor, knob: Tensor, **settings: Any) -> Tensor:
        self.weights(losses.detach(), knob, **settings)
        return self.objective(losses, knob, **settings)

    def tick(self, runs: int) -> None:
        """Record the end of an epoch, if it had steps."""
        n, size, below, size_below = self._sums
        if n:
            means = (size / n, below / n, size_below / below if below else math.nan)
            self.epochs.append(dict(zip(WEIGHT_STATS, means)))
        self._sums = [0.0] * 4


def weights_along(protocol: Protocol, run: Run, splits: Splits | None = None) -> pd.DataFrame:
    """Train one run again, alone and on the CPU: a row per epoch with `WEIGHT_STATS`, the last one measured.

    For methods whose gradient is a weighing of the samples: ERM, Flooding, iFlood, SoftAD.
    """
    weighing = [
        m.name
        for m in METHODS.values()
        if m.gradients == 1 and closed_form_weights(m.objective) is not None
    ]
    choose("method", run.method, weighing)
    recorder = WeightRecorder(METHODS[run.method].objective)
    ends = _trained(protocol, run, recorder, splits, recorder.tick)
    along = pd.DataFrame(recorder.epochs).assign(epoch=range(1, protocol.epochs + 1))
    facts = ends[["dataset", "method", *RUN_KEY]].iloc[0].to_dict()
    measured = ends[["epoch", *MEASURES]]
    return along.assign(**facts, control=REPLAY, factor=1.0).merge(measured, "left", on="epoch")


def scaled(losses: Tensor, knob: object = None, *, factor: float) -> Tensor:
    """Return factor · mean ℓ, (n,) → ()."""
    return factor * losses.mean()


def train_matched_erm(
    protocol: Protocol, run: Run, factor: float, control: str = BY_LR, splits: Splits | None = None
) -> pd.DataFrame:
    """Train ERM on the run's trial with lr × `factor`, or with loss × `factor`; return the last epoch's row.

    `knob` is the run's, so that the row can be put beside it. Under Adam only the former shortens
    the steps; under SGD without weight decay both are the same.
    """
    choose("control", control, (BY_LR, BY_LOSS))
    objective = METHODS["erm"].objective
    if control == BY_LR:
        protocol = protocol.replace(lr=protocol.lr * factor)
    else:
        objective = functools.partial(scaled, factor=factor)
    erm = dataclasses.replace(run, method="erm", knob=math.nan)
    ends = _trained(protocol, erm, objective, splits)
    return ends.assign(knob=run.knob, control=control, factor=factor)


def _trained(
    protocol: Protocol,
    run: Run,
    objective: Callable[..., torch.Tensor],
    splits: Splits | None,
    tick: Callable[[int], None] = lambda runs: None,
) -> pd.DataFrame:
    protocol = protocol.replace(device="cpu")
    method = dataclasses.replace(protocol.method(run.method), objective=objective)
    with deterministic_math(pick_device("cpu"), protocol.precision):
        return Trainer(protocol, [run], splits, method=method).rows([run], {protocol.epochs}, tick)


def _train_controls(protocol: Protocol, run: Run) -> tuple[Protocol, pd.DataFrame]:
    """Train all controls of one selected run."""
    splits = load_splits(protocol, run.label_noise)
    replay = weights_along(protocol, run, splits)
    factor = float(replay["weight"].mean())
    matched = [
        train_matched_erm(protocol, run, factor, control, splits) for control in (BY_LR, BY_LOSS)
    ]
    tables = [t.reindex(columns=TABLE) for t in (replay, *matched)]
    return protocol, pd.concat(tables, ignore_index=True)


def selected(rows: pd.DataFrame) -> list[Run]:
    """Return the SoftAD runs that either tie rule selects, each once."""
    runs = rows[rows["method"] == "softad"]
    chosen = pd.concat([selection.select(runs, ties) for ties in TIES])
    keys = chosen[RUN_KEY].drop_duplicates().sort_values(RUN_KEY)
    return [Run("softad", q, int(t), v) for q, t, v in keys.itertuples(index=False)]


def path_of(profile: str, dataset: str) -> Path:
    """Return the path of the controls of a dataset."""
    return profile_dir(profile) / dataset / "controls.parquet"


def plan(profile: str, datasets: Sequence[str] | None = None) -> list[tuple[Protocol, Run]]:
    """List the selected SoftAD runs of a profile's finished sweeps whose controls are not there yet.

    Raises UserError where there is no such sweep, or one that other code made.
    """
    have = [f.dataset for f in reader.finished(profile) if f.method == "softad"]
    if not have:
        raise UserError(
            f"outputs/{profile} holds no finished SoftAD sweep; softad train {profile} makes them"
        )
    for dataset in datasets or ():
        choose("dataset", dataset, have)
    todo = []
    for dataset in dict.fromkeys(datasets or have):
        protocol = _protocol(profile, dataset)
        done = set(_stored(protocol)[RUN_KEY].itertuples(index=False, name=None))
        runs = selected(reader.read(profile, dataset))
        todo += [(protocol, r) for r in runs if (r.label_noise, r.trial, r.knob) not in done]
    return todo


def train_controls(todo: Sequence[tuple[Protocol, Run]], jobs: int = 1) -> Iterator[Protocol]:
    """Train what `plan` gives and store it run by run, so that a later call resumes.

    Yields the protocol of each run once its controls are stored.
    """
    from joblib import Parallel, delayed

    work = (delayed(_train_controls)(protocol, run) for protocol, run in todo)
    with explain_killed_worker():
        for protocol, controls in Parallel(n_jobs=jobs, return_as="generator_unordered")(work):
            stored = _stored(protocol)
            table = pd.concat([stored, controls], ignore_index=True) if len(stored) else controls
            key = [*RUN_KEY, "control", "epoch"]
            table = table.drop_duplicates(key).sort_values(key, ignore_index=True)
            content = pack(table, protocol.fingerprint("softad"))
            _workspace.write(path_of(protocol.profile, protocol.dataset), content)
            yield protocol


def _protocol(profile: str, dataset: str) -> Protocol:
    """Return the protocol that made the stored sweep."""
    folder = ResultFolder(profile, dataset, "softad")
    facts = folder.read_provenance()
    protocol = Protocol.from_provenance(facts.protocol)
    if protocol.fingerprint("softad") != facts.fingerprint:
        raise UserError(
            f"{folder.path} was made by other code than this; softad train {profile} makes it again"
        )
    return protocol


def _stored(protocol: Protocol) -> pd.DataFrame:
    """Return the controls that this protocol made; no rows where another did, or none."""
    path = path_of(protocol.profile, protocol.dataset)
    return _read_if_made_for(path, protocol.fingerprint("softad"))


def _read_if_made_for(path: Path, fingerprint: str) -> pd.DataFrame:
    """Read the controls of the sweep with this fingerprint; no rows where they are of another, or none."""
    if path.exists():
        table, stored = _read(path)
        if stored == fingerprint:
            return table
    return pd.DataFrame(columns=TABLE)


def _read(path: Path) -> tuple[pd.DataFrame, str]:
    """Read a table and the fingerprint of the protocol that made it; UserError for a broken file."""
    mend = f"delete it, and softad audit {path.parent.parent.name} makes it again"
    return unpack(path, TABLE, mend)


def read(profile: str) -> pd.DataFrame:
    """Read the controls of a profile's SoftAD sweeps, columns `TABLE`; where there are none, no rows.

    Controls of a sweep that is no longer there are left out.
    """
    sweeps = [folder for folder in reader.finished(profile) if folder.method == "softad"]
    tables = [
        _read_if_made_for(path_of(profile, sweep.dataset), sweep.read_provenance().fingerprint)
        for sweep in sweeps
    ]
    tables = [table for table in tables if len(table)]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=TABLE)
