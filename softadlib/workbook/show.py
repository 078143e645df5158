"""Say what a profile holds, what of it is done, and how long the rest takes on this machine."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from softadlib._validation import UserError
from softadlib.data.images import own_image_set
from softadlib.results import reader
from softadlib.training.executors import shards, slurm
from softadlib.training.profiles import datasets_of, load, profile_names
from softadlib.training.protocol import Protocol
from softadlib.training.study_plan import Study, StudyState
from softadlib.workbook.notebooks.progress_bar import duration
from softadlib.workbook.prepare import Work
from softadlib.workbook.schema import describe


def profiles() -> str:
    """Return a table of the profiles with their datasets and finished results."""
    lines = [("profile", "finished", "datasets")]
    for name in profile_names():
        try:
            datasets = ", ".join(datasets_of(name))
        except UserError:
            datasets = "none: no DATASET.yaml"
        lines.append((name, str(len(reader.finished(name))), datasets))
    return _table(lines)


def progress(work: Work, jobs: int) -> str:
    """Return a table of the studies: runs, epochs, share done, time left with `jobs` processes.

    Selected runs whose curves are missing are trained again, and count as work left.
    """
    lines: list[tuple[str, ...]] = [
        ("dataset", "method", "values", "trials", "runs", "epochs", "done", "time left")
    ]
    speeds = slurm.speeds()
    seconds = [seconds_left(*pair, jobs, speeds) for pair in zip(work.studies, work.states)]
    for study, state, left in zip(work.studies, work.states, seconds):
        trials = {(run.label_noise, run.trial) for run in study.runs}
        counts = (len(study.runs) // max(len(trials), 1), len(trials), len(study.runs))
        whole = study.runs_work()
        left_units = (state.runs_left + state.replays_left) * study.units_per_run
        done = 100 * (whole - left_units) // max(whole, 1)
        words = (study.protocol.dataset, study.method, *map(str, counts))
        time = "–" if not left else f"about {duration(left)}"
        lines.append((*words, str(study.protocol.epochs), f"{done}%", time))
    total = f"in all about {duration(sum(seconds))} left, with {jobs} processes"
    if not sum(seconds):
        total = "everything else is trained" if work.left_out else "everything is trained"
    return f"{_table(lines)}\n{total}"


def seconds_left(study: Study, state: StudyState, jobs: int, speeds: Mapping[str, float]) -> float:
    """Estimate the time of a study's missing runs and replays from `speeds`, those of stored results."""
    runs, replays = state.runs_left, state.replays_left
    if not runs + replays:
        return 0.0
    curves = len(study.first_epochs) > 1
    images = own_image_set(study.protocol.dataset, study.protocol.folder)
    cost = runs * shards.run_cost(study.protocol, study.method, curves, images)
    cost += replays * shards.run_cost(study.protocol, study.method, True, images)
    return max(cost / _speed(study.protocol.model, speeds), 1.0) / jobs


def whole_costs(profile: str) -> dict[str, float]:
    """Return the seconds that every dataset of a profile would take one process, results or not."""
    costs, speeds = {}, slurm.speeds()
    for dataset in datasets_of(profile):
        protocol = load(profile, dataset)
        units = shards.units([(protocol, method) for method in protocol.methods])
        costs[dataset] = sum(unit.cost for unit in units) / _speed(protocol.model, speeds)
    return costs


def _speed(model: str, speeds: Mapping[str, float]) -> float:
    """Return operations per second; a network without stored results is as fast as the others are."""
    return speeds.get(model) or statistics.median(speeds.values() or [2e10])


def parameters(work: Work) -> str:
    """Return the parameters of a profile: values, default, what is allowed, what it means.

    Where datasets differ, the commonest value stands first, then those of the others by name.
    """
    values: dict[str, dict[str, str]] = {}
    for dataset, protocol in work.protocols.items():
        for name, value in _flat(protocol, work.selection.methods).items():
            values.setdefault(name, {})[dataset] = value
    described = describe()
    lines = [("parameter", "value", "default", "allowed", "meaning")]
    for name, by_dataset in values.items():
        common = Counter(by_dataset.values()).most_common(1)[0][0]
        others = [f"{d}: {v}" for d, v in by_dataset.items() if v != common]
        about, value = described[name], "; ".join([common, *others])
        default = "" if about.default == '""' else about.default.strip('"')
        lines.append((name, value, default, about.values, about.meaning))
    return _table(lines)


def _flat(protocol: Protocol, methods: Sequence[str] | None) -> dict[str, str]:
    """Return the values of a protocol in words, by dotted name; settings of its methods only."""
    values = protocol.to_dict()
    used = protocol.select_methods(methods)
    words: dict[str, str] = {}
    for name, value in values.items():
        if name == "grids":
            words |= {f"grids.{m}": _grid(value[m]) for m in used if m in value}
        elif name == "settings":
            for method in used:
                settings = value.get(method, {})
                words |= {f"settings.{method}.{k}": str(v) for k, v in settings.items()}
        elif name not in ("profile", "dataset"):
            words[name] = str(value)
    return words


def _grid(values: Sequence[float] | str) -> str:
    """Return a grid in words, shortly where it is long."""
    if isinstance(values, str) or len(values) < 6:
        return str(values)
    return f"{len(values)} from {min(values):g} to {max(values):g}"


def _table(lines: Sequence[Sequence[str]]) -> str:
    """Write a table with aligned columns; the last one keeps its length."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rows = ["  ".join(word.ljust(width) for word, width in zip(line, widths)) for line in lines]
    return "\n".join(row.rstrip() for row in rows)
