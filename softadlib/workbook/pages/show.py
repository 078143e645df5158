"""Say what a profile holds, what of it is done, and what its parameters are."""

import json
from collections.abc import Sequence

from softadlib._validation import UserError, counted
from softadlib.methods import METHODS
from softadlib.workbook.studies.params import datasets_of, profile_names
from softadlib.workbook.studies.protocol import Protocol
from softadlib.workbook.studies.read import stored_studies
from softadlib.workbook.studies.study import Study
from softadlib.workbook.studies.work import Work

LISTED_ONE_BY_ONE = 20
"""Studies that are listed one by one: a screen has 24 lines."""


def profiles() -> str:
    """Return a table of the profiles with their datasets and finished results."""
    lines = [("profile", "finished", "datasets")]
    for name in profile_names():
        try:
            datasets = ", ".join(datasets_of(name))
        except UserError:
            datasets = "none: no DATASET.yaml"
        try:
            count = str(len(stored_studies(name)))
        except UserError:  # `softad show NAME` says which file
            count = "broken"
        lines.append((name, count, datasets))
    return table(lines)


def progress(work: Work) -> str:
    """Return a table of the studies: which values, trials and runs are there, and of how many epochs.

    If there are more than `LISTED_ONE_BY_ONE` studies, a dataset takes one line when all its studies are
    finished, or when none of them has a trained run. Selected runs whose curves are missing are trained
    again, and count as work left.
    """
    lines: list[tuple[str, ...]] = [
        ("dataset", "method", "values", "trials", "runs", "epochs", "done", "hours so far")
    ]
    all_studies = [*work.studies, *work.without_data]
    for dataset in dict.fromkeys(study.protocol.dataset for study in all_studies):
        studies = [study for study in all_studies if study.protocol.dataset == dataset]
        alike = all(s.finished for s in studies) or not any(s.trained for s in studies)
        if alike and len(all_studies) > LISTED_ONE_BY_ONE:
            lines.append(_line(counted(len(studies), "method"), studies))
        else:
            lines += [_line(study.method, [study]) for study in studies]
    left = sum(study.left for study in all_studies)
    remains = f"{counted(left, 'training')} {'is' if left == 1 else 'are'} left"
    total = remains if left else "everything is trained"
    if without := sum(study.left for study in work.without_data):
        names = dict.fromkeys(study.protocol.dataset for study in work.without_data)
        total += f", {without:,} of them of data that are missing: {', '.join(names)}"
    shown = [table(lines)] if all_studies else []
    return "\n".join([*shown, total, *_also_stored(work)])


def _line(method: str, studies: Sequence[Study]) -> tuple[str, ...]:
    """Return the line of studies of one dataset."""
    protocol = studies[0].protocol
    trained = sum(study.trained for study in studies)
    left = sum(study.left for study in studies)
    runs = sum(len(study.runs) for study in studies)
    seconds = [session.seconds for study in studies for session in study.store.sessions()]
    return (
        protocol.dataset,
        method,
        _values(studies),
        _trials(studies),
        _of(trained, runs),
        str(protocol.epochs),
        f"{100 * trained // max(trained + left, 1)}%",
        f"{sum(seconds) / 3600:.1f}" if seconds else "–",
    )


def _of(there: int, wanted: int) -> str:
    """Return "3 of 10", or "10" where all are there."""
    return f"{there:,}" if there == wanted else f"{there:,} of {wanted:,}"


def _values(studies: Sequence[Study]) -> str:
    """Return how many values of the grid have a run: "3 of 10", of several methods "6–10"."""
    words = []
    for study in studies:
        wanted = {run.knob for run in study.runs}
        words.append(_of(len({run.knob for run in study.done}), len(wanted)))
    words.sort(key=len)
    return "–".join(dict.fromkeys((words[0], words[-1])))


def _trials(studies: Sequence[Study]) -> str:
    """Return how many trials have runs: "2 of 5", of several methods the fewest."""
    wanted = max(len({run.trial for run in study.runs}) for study in studies)
    return _of(min(len({run.trial for run in study.done}) for study in studies), wanted)


def _also_stored(work: Work) -> list[str]:
    """Return a line for every study with stored runs outside its protocol."""
    lines = [
        f"also stored: {study.name}, {counted(study.others, 'run')} of other values, trials or label noises"
        for study in work.studies
        if study.others
    ]
    protocols = work.protocols
    for store, provenance in stored_studies(work.profile).items():
        protocol = protocols.get(store.dataset)
        if protocol is not None and store.method not in protocol.methods:
            name = f"{store.dataset} × {store.method}"
            lines.append(f"also stored: {name}, {counted(provenance.protocol['trials'], 'trial')}")
    return lines


def parameters(work: Work, methods: Sequence[str] | None) -> str:
    """Return the parameters of each dataset that differ from their default, and its grids, as YAML."""
    others = ("profile", "dataset", "settings", "grids")
    lines = []
    for dataset, protocol in work.protocols.items():
        changed = {}
        for name, field in Protocol.model_fields.items():
            value = getattr(protocol, name)
            if name not in others and value != field.default:
                changed[name] = value
        for method in protocol.select_methods(methods):
            if method in protocol.grids:
                changed[f"grids.{method}"] = protocol.grids[method]
            for name, value in protocol.settings_of(method).items():
                if value != METHODS[method].defaults[name]:
                    changed[f"settings.{method}.{name}"] = value
        lines.append(f"{dataset}:")
        lines += [f"  {name}: {json.dumps(value)}" for name, value in changed.items()]
    return "\n".join(lines)


def table(lines: Sequence[Sequence[str]]) -> str:
    """Write a table with aligned columns; the last one keeps its length."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rows = ["  ".join(word.ljust(width) for word, width in zip(line, widths)) for line in lines]
    return "\n".join(row.rstrip() for row in rows)
