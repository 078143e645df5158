"""θ from one ordinary run, where a protocol's grid says `auto`: found once per trial and stored.

Every trial's network is trained by ERM as the protocol trains any. `suggest_theta` reads θ off its
validation logits, and the method is trained at it: two trainings a trial instead of a grid.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from softadlib._validation import UserError
from softadlib.data.splits import Splits
from softadlib.losses.threshold.suggest import FLOOR, RULE, Suggestion, suggest_theta
from softadlib.results.folder import ResultFolder
from softadlib.training.checks import AUTO
from softadlib.training.device import deterministic_math, pick_device
from softadlib.training.executors.local import Executor, TaskContext, group_trials, run_tasks
from softadlib.training.heldout import AT_A_TIME, train_erm
from softadlib.training.inputs import load_splits
from softadlib.training.progress import ProgressCallback
from softadlib.training.protocol import Protocol, Run


@dataclass(frozen=True)
class SuggestionTask:
    """Suggest θ for some trials of one label noise."""

    protocol: Protocol
    label_noise: float
    trials: Sequence[int]

    @property
    def units(self) -> int:
        """Epochs of all ordinary runs."""
        return self.protocol.epochs * len(self.trials)

    def run(self, context: TaskContext) -> dict[int, Suggestion]:
        """Return the suggestion of each trial."""
        return suggestions(self.protocol, self.label_noise, self.trials, context)

    def store(self, folder: ResultFolder, result: dict[int, Suggestion]) -> None:
        """Write one file a trial."""
        for trial, suggestion in result.items():
            _save(folder, self.label_noise, trial, suggestion)


def resolve_auto(protocol: Protocol, runs: Sequence[Run], folder: ResultFolder) -> tuple[Run, ...]:
    """Return `runs` of one method with their stored θ; runs without one still await theirs.

    A study trains at the smallest θ where `suggest_theta` advises against every one.
    """
    word = protocol.grids.get(runs[0].method)
    if word not in AUTO:
        return tuple(runs)
    resolved = []
    for run in runs:
        stored = _read(folder, run.label_noise, run.trial)
        if stored:
            theta = max(FLOOR, getattr(stored, AUTO[word]) or 0.0)
            run = dataclasses.replace(run, knob=theta, awaits_theta=False)
        else:
            run = dataclasses.replace(run, knob=math.nan, awaits_theta=True)
        resolved.append(run)
    return tuple(resolved)


def suggestions(
    protocol: Protocol,
    label_noise: float,
    trials: Sequence[int],
    context: TaskContext | None = None,
) -> dict[int, Suggestion]:
    """Suggest θ of each trial from an ordinary run, or read it in the context's folder.

    Raises UserError for validation logits that cannot be used, such as those of a diverged run.
    """
    context = context or TaskContext()
    folder = context.folder
    stored = {t: _read(folder, label_noise, t) if folder else None for t in trials}
    result = {t: suggestion for t, suggestion in stored.items() if suggestion is not None}
    missing = [t for t in trials if t not in result]
    if missing:
        splits = load_splits(protocol, label_noise)
        with deterministic_math(pick_device(protocol.device), protocol.precision):
            for trial, network, data in train_erm(protocol, label_noise, missing, splits, context):
                result[trial] = _suggest(protocol, label_noise, trial, network, data)
                if folder:
                    _save(folder, label_noise, trial, result[trial])
    return {t: result[t] for t in trials}


@torch.no_grad()
def _suggest(
    protocol: Protocol, label_noise: float, trial: int, network: nn.Module, data: Splits
) -> Suggestion:
    """Suggest θ from the validation logits of one network."""
    index = data.val[trial]
    parts = (data.inputs(data.x[chunk], "val", trial) for chunk in index.split(AT_A_TIME))
    try:
        return suggest_theta(torch.cat([network(x) for x in parts]), data.y[index])
    except ValueError as error:
        raise UserError(
            f"theta auto on {protocol.dataset}, label noise {label_noise:g}, trial {trial}: {error}; "
            "change lr or n_val, or give a grid"
        ) from None


def _save(folder: ResultFolder, label_noise: float, trial: int, suggestion: Suggestion) -> None:
    facts = {"rule": RULE, **dataclasses.asdict(suggestion)}
    folder.save_suggestion(label_noise, trial, facts)


def _read(folder: ResultFolder, label_noise: float, trial: int) -> Suggestion | None:
    """Read a stored suggestion; None where it is missing, damaged, or by another rule."""
    facts = folder.read_suggestion(label_noise, trial)
    if not facts or facts.pop("rule", None) != RULE:
        return None
    try:
        return Suggestion(**{**facts, "reasons": tuple(facts["reasons"])})
    except (KeyError, TypeError):
        return None


def prepare(
    protocol: Protocol,
    runs: Sequence[Run],
    folder: ResultFolder,
    executor: Executor,
    progress: ProgressCallback,
) -> int:
    """Find and store every suggestion that `runs` lack; return how many ordinary runs it took."""
    missing = {(run.label_noise, run.trial) for run in runs if run.awaits_theta}
    tasks = [SuggestionTask(protocol, *group) for group in group_trials(missing, executor.device)]
    for _ in run_tasks(executor, tasks, folder, progress):
        pass
    return len(missing)
