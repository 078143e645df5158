"""θ from one ordinary run, where a protocol's grid says `auto`: found once per trial and kept.

Every trial's network is trained by ERM as the protocol trains any; `suggest_theta` reads θ off its
validation logits, and the method is trained at it. Two trainings a trial instead of a grid.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from softadlib._validation import UserError
from softadlib.data.splits import Splits
from softadlib.losses.threshold.suggest import FLOOR, RULE, Suggestion, suggest_theta
from softadlib.results.folder import ResultFolder
from softadlib.training.checks import AUTO
from softadlib.training.device import deterministic_math, pick_device
from softadlib.training.executors.local import Executor
from softadlib.training.heldout import AT_A_TIME, together, trained
from softadlib.training.inputs import load_splits
from softadlib.training.progress import no_progress
from softadlib.training.protocol import Protocol, Run
from softadlib.training.run_writer import RunWriter


def resolve_auto(protocol: Protocol, runs: Sequence[Run], place: ResultFolder) -> tuple[Run, ...]:
    """`runs` of one method with θ where a suggestion is stored; NaN stays where there is none yet.

    A study trains at the smallest θ where `suggest_theta` advises against every one.
    """
    word = protocol.grids.get(runs[0].method)
    if word not in AUTO:
        return tuple(runs)
    kept = (_read(place, run.label_noise, run.trial) for run in runs)
    return tuple(
        dataclasses.replace(run, knob=max(FLOOR, getattr(s, AUTO[word]) or 0.0) if s else math.nan)
        for run, s in zip(runs, kept)
    )


def suggestions(
    protocol: Protocol,
    label_noise: float,
    trials: Sequence[int],
    place: ResultFolder | None = None,
    tick: Callable[[int], None] = lambda units: None,
    checkpoints: Path | None = None,
) -> dict[int, Suggestion]:
    """What `suggest_theta` makes of an ordinary run of each trial.

    `place` keeps them and is asked first. `checkpoints` is a folder for trainings under way.
    `tick` is told of the epochs trained. Raises UserError for validation logits that cannot be
    used, as those of a diverged run.
    """
    kept = {t: _read(place, label_noise, t) if place else None for t in trials}
    found = {t: suggestion for t, suggestion in kept.items() if suggestion is not None}
    missing = [t for t in trials if t not in found]
    if missing:
        splits = load_splits(protocol, label_noise)
        with deterministic_math(pick_device(protocol.device), protocol.precision):
            desk = RunWriter(
                protocol, directory=checkpoints or (place.checkpoints if place else None)
            )
            ends = trained(protocol, label_noise, missing, splits, desk, tick=tick)
            for trial, network, data in ends:
                found[trial] = _suggest(protocol, label_noise, trial, network, data)
                if place:
                    _save(place, label_noise, trial, found[trial])
    return {t: found[t] for t in trials}


@torch.no_grad()
def _suggest(
    protocol: Protocol, label_noise: float, trial: int, network: nn.Module, data: Splits
) -> Suggestion:
    index = data.val[trial]
    parts = (data.inputs(data.x[some], "val", trial) for some in index.split(AT_A_TIME))
    try:
        return suggest_theta(torch.cat([network(x) for x in parts]), data.y[index])
    except ValueError as error:
        raise UserError(
            f"theta auto on {protocol.dataset}, label noise {label_noise:g}, trial {trial}: {error}; "
            "change lr or n_val, or give a grid"
        ) from None


def _save(place: ResultFolder, label_noise: float, trial: int, suggestion: Suggestion) -> None:
    facts = {"rule": RULE, **dataclasses.asdict(suggestion)}
    place.save_suggestion(label_noise, trial, facts)


def _read(place: ResultFolder, label_noise: float, trial: int) -> Suggestion | None:
    """None where there is none, a damaged one, or one by another rule."""
    facts = place.read_suggestion(label_noise, trial)
    if not facts or facts.pop("rule", None) != RULE:
        return None
    try:
        return Suggestion(**{**facts, "reasons": tuple(facts["reasons"])})
    except (KeyError, TypeError):
        return None  # damaged; it can be found again


def prepare(
    protocol: Protocol,
    runs: Sequence[Run],
    place: ResultFolder,
    executor: Executor,
    tick: Callable[[int], None],
) -> int:
    """Find and keep every suggestion that `runs` still want; how many ordinary runs were trained."""
    lacking = {
        (run.label_noise, run.trial)
        for run in runs
        if protocol.grids.get(run.method) in AUTO and math.isnan(run.knob)
    }
    here, keep = executor.workers == 1 and executor.writes, place if executor.writes else None
    checkpoints = executor.checkpoints(place)
    tasks = [
        (protocol, *some, keep, tick if here else no_progress, checkpoints)
        for some in together(lacking, executor.where)
    ]
    for noise, found in executor.map(_find, tasks):
        for trial, suggestion in found.items() if keep is None else ():
            _save(place, noise, trial, suggestion)
        if not here:
            tick(protocol.epochs * len(found))
    return len(lacking)


def _find(
    protocol: Protocol,
    noise: float,
    trials: list[int],
    place: ResultFolder | None,
    tick: Callable[[int], None],
    checkpoints: Path | None,
) -> tuple[float, dict[int, Suggestion]]:
    return noise, suggestions(protocol, noise, trials, place, tick, checkpoints)


def preserve_suggestions(
    runs: Sequence[Run], place: ResultFolder, move: Callable[[], object]
) -> None:
    """Do `move`, which takes away what is stored, and leave the suggestions of `runs` where they were."""
    kept = {(r.label_noise, r.trial): place.read_suggestion(r.label_noise, r.trial) for r in runs}
    move()
    for key, facts in kept.items():
        if facts:
            place.save_suggestion(*key, facts)
