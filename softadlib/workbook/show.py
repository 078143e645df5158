"""Say what a profile holds, what of it is done, and what its parameters are."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from softadlib._validation import UserError, describe_range
from softadlib._workspace import params_dir, write
from softadlib.methods import METHODS
from softadlib.models import MODELS
from softadlib.results.read import stored_studies
from softadlib.training.plan import Study
from softadlib.training.profiles import datasets_of, profile_names
from softadlib.training.protocol import Protocol
from softadlib.workbook.work import Work

MOST_LINES = 20
"""Studies that are listed one by one: a screen has 24 lines."""
MARKS = ("<!-- parameters -->", "<!-- end of parameters -->")
"""Lines of `params/README.md` between which its tables stand: `python -m softadlib.workbook.show`."""


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


def facts(work: Work) -> list[dict[str, Any]]:
    """Return what is done of every study, for programs: `softad show PROFILE --json`."""
    return [
        {
            "profile": work.profile,
            "dataset": study.protocol.dataset,
            "method": study.method,
            "fingerprint": study.fingerprint,
            "runs": len(study.plan.runs),
            "trained": study.plan.trained,
            "left": study.plan.left,
            "finished": study.finished,
            "protocol": study.protocol.to_dict(),
        }
        for study in work.studies
    ]


def progress(work: Work) -> str:
    """Return a table of the studies: which values, trials and runs are there, and of how many epochs.

    Of more than `MOST_LINES` studies, those of a dataset that are all finished, or of which nothing is
    done, are one line. Selected runs whose curves are missing are
    trained again, and count as work left.
    """
    by_dataset: dict[str, list[Study]] = {}
    for study in work.studies:
        by_dataset.setdefault(study.protocol.dataset, []).append(study)
    groups: dict[tuple[str, str], list[Study]] = {}
    for dataset, studies in by_dataset.items():
        alike = all(s.finished for s in studies) or not any(s.plan.trained for s in studies)
        if alike and len(work.studies) > MOST_LINES:
            groups[dataset, f"{len(studies)} methods"] = studies
        else:
            groups |= {(dataset, study.method): [study] for study in studies}
    head = ("dataset", "method", "values", "trials", "runs", "epochs", "done", "hours so far")
    lines: list[tuple[str, ...]] = [head]
    for (dataset, method), studies in groups.items():
        trained = sum(study.plan.trained for study in studies)
        left = sum(study.plan.left for study in studies)
        seconds = [session.seconds for study in studies for session in study.store.sessions()]
        line = (
            dataset,
            method,
            _values(studies),
            _trials(studies),
            _of(trained, sum(len(study.plan.runs) for study in studies)),
            str(studies[0].protocol.epochs),
            f"{100 * trained // max(trained + left, 1)}%",
            f"{sum(seconds) / 3600:.1f}" if seconds else "–",
        )
        lines.append(line)
    left = sum(study.plan.left for study in work.studies)
    total = f"{left:,} trainings are left" if left else "everything is trained"
    return "\n".join([*([table(lines)] if groups else []), total, *_also_stored(work)])


def _of(there: int, wanted: int) -> str:
    """Return "3 of 10", or "10" where all are there."""
    return f"{there:,}" if there == wanted else f"{there:,} of {wanted:,}"


def _values(studies: Sequence[Study]) -> str:
    """Return how many values of the grid have a run: "3 of 10", of several methods "6–10"."""
    words = []
    for study in studies:
        wanted = {run.knob for run in study.plan.runs}
        words.append(_of(len({run.knob for run in study.plan.done}), len(wanted)))
    words.sort(key=len)
    return "–".join(dict.fromkeys((words[0], words[-1])))


def _trials(studies: Sequence[Study]) -> str:
    """Return how many trials have runs: "2 of 5", of several methods the fewest."""
    wanted = max(len({run.trial for run in study.plan.runs}) for study in studies)
    return _of(min(len({run.trial for run in study.plan.done}) for study in studies), wanted)


def _also_stored(work: Work) -> list[str]:
    """Return lines on stored runs that nobody asked for: of other values, or of methods without a grid."""
    lines = [
        f"also stored: {study.name}, {study.plan.others} runs of other values, trials or label noises"
        for study in work.studies
        if study.plan.others
    ]
    protocols = work.protocols
    for store, provenance in stored_studies(work.profile).items():
        protocol = protocols.get(store.dataset)
        if protocol is not None and store.method not in protocol.methods:
            name = f"{store.dataset} × {store.method}"
            lines.append(f"also stored: {name}, {provenance.protocol['trials']} trials")
    return lines


def parameters(work: Work, methods: Sequence[str] | None) -> str:
    """Return the values of a profile's parameters; where datasets differ, the others' by name."""
    values: dict[str, dict[str, str]] = {}
    for dataset, protocol in work.protocols.items():
        for name, value in _flat(protocol, methods).items():
            values.setdefault(name, {})[dataset] = value
    lines = [("parameter", "value")]
    for name, by_dataset in values.items():
        common = Counter(by_dataset.values()).most_common(1)[0][0]
        others = [f"{d}: {v}" for d, v in by_dataset.items() if v != common]
        lines.append((name, "; ".join([common, *others])))
    return table(lines)


def _flat(protocol: Protocol, methods: Sequence[str] | None) -> dict[str, str]:
    """Return the values that differ from their default, and the grids, by dotted name."""
    values, used = protocol.to_dict(), protocol.select_methods(methods)
    words: dict[str, str] = {}
    for name, field in Protocol.model_fields.items():
        value = values[name]
        if name == "grids":
            words |= {f"grids.{m}": _grid(value[m]) for m in used if m in value}
        elif name == "settings":
            for method in used:
                defaults = METHODS[method].defaults
                own = value.get(method, {})
                changed = {k: str(v) for k, v in own.items() if v != defaults[k]}
                words |= {f"settings.{method}.{k}": text for k, text in changed.items()}
        elif name not in ("profile", "dataset") and getattr(protocol, name) != field.default:
            words[name] = str(value)
    return words


def _grid(values: Sequence[float]) -> str:
    """Return a grid in words, shortly where it is long."""
    if len(values) < 6:
        return str(list(values))
    return f"{len(values)} from {min(values):g} to {max(values):g}"


def table(lines: Sequence[Sequence[str]]) -> str:
    """Write a table with aligned columns; the last one keeps its length."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rows = ["  ".join(word.ljust(width) for word, width in zip(line, widths)) for line in lines]
    return "\n".join(row.rstrip() for row in rows)


def schema() -> str:
    """Return `params/schema.json`, by which editors complete and check a profile's file."""
    document = _schema()
    document.pop("required")  # the path says profile and dataset
    words = "PROFILE/DATASET whose values hold where this file has none."
    extends = {"extends": {"type": "string", "description": words}}
    document["properties"] = extends | document["properties"]
    document["patternProperties"] = {r"^(grids|settings)\.": {}}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _schema() -> dict[str, Any]:
    """Return the protocol's JSON schema, with what its validators accept besides the fields' types."""
    document = Protocol.model_json_schema()
    fields = document["properties"]
    fields["model"]["enum"] = list(MODELS)
    noise, number = fields["label_noise"], {"type": "number"}
    noise["anyOf"] = [noise["items"], {"type": noise.pop("type"), "items": noise.pop("items")}]
    linspace = {"type": "object", "required": ["linspace"]}
    grid = {"anyOf": [number, {"type": "array", "items": number}, linspace]}
    swept = {method.name: grid for method in METHODS.values() if method.knob}
    fields["grids"] |= {"additionalProperties": False, "properties": swept}
    settings = {
        method.name: {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                name: {"default": setting.default, "description": setting.meaning}
                for name, setting in method.settings.items()
            },
        }
        for method in METHODS.values()
        if method.settings
    }
    fields["settings"] |= {"additionalProperties": False, "properties": settings}
    return document


def reference() -> str:
    """Return the tables of `params/README.md`: every parameter, every setting, every method's values."""
    lines = ["| parameter | default | meaning |", "|---|---|---|"]
    for name, facts in _schema()["properties"].items():
        default = f"`{json.dumps(facts['default'])}`" if "default" in facts else ""
        default = "" if name == "settings" else default
        choices = ", ".join(facts.get("enum", ()))
        meaning = " ".join(facts["description"].split())
        meaning += f" One of {choices}." if choices else ""
        lines.append(f"| `{name}` | {default} | {meaning} |")
    lines += ["", "Settings, `settings: {METHOD: {NAME: VALUE}}`:", ""]
    lines += ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for method in METHODS.values():
        for name, setting in method.settings.items():
            bounds = describe_range(low=setting.low, above=setting.above)
            allowed = ", ".join(setting.choices) or bounds
            about = f"`{setting.default}` | {allowed} | {setting.meaning}"
            lines.append(f"| `{method.name}.{name}` | {about} |")
    title = "Hyperparameters, swept by `grids: {METHOD: VALUES}`, column `knob` of every table:"
    lines += ["", title, ""]
    lines += ["| method | hyperparameter | values |", "|---|---|---|"]
    for method in METHODS.values():
        if method.knob:
            bounds = describe_range(**method.bounds)
            lines.append(f"| `{method.name}` ({method.label}) | {method.axis} | {bounds} |")
    return "\n".join(lines) + "\n"


def write_references() -> None:
    """Write `params/schema.json` and the tables between the marks of `params/README.md`."""
    page = params_dir() / "README.md"
    head, tail = (page.read_text(encoding="utf-8").split(mark)[i] for i, mark in enumerate(MARKS))
    write(page, f"{head}{MARKS[0]}\n{reference()}{MARKS[1]}{tail}")
    write(params_dir() / "schema.json", schema())


if __name__ == "__main__":
    write_references()
