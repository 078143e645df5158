"""Which notebooks to execute: one per dataset × method trains, the others draw and tabulate."""

import contextlib
import hashlib
import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softadlib import _workspace
from softadlib._validation import UserError, choose
from softadlib._yaml import read_yaml
from softadlib.results import reader
from softadlib.results.paths import profile_dir
from softadlib.training.profiles import datasets_of, load
from softadlib.workbook.notebooks.imports import skip_iri_grammar
from softadlib.workbook.notebooks.sources import missing_packages, modules_used
from softadlib.workbook.prepare import Work

TRAIN = "train"
"""The notebook executed once per dataset × method; all others draw."""
FILES = rb"outputs/([\w*/-]+\.json)"
"""How a notebook or its parameters name files that it reads beside the results of profiles."""
FIGURES = "figures"
"""In place of a profile: the notebooks that read no profile, drawn once for all of them."""


@dataclass(frozen=True)
class Task:
    """One notebook to execute with one set of parameters."""

    name: str
    source: Path
    target: Path
    parameters: Mapping[str, Any]
    units: int = 0
    """Progress units of its training; 0 for a notebook that draws."""
    progress: Path | None = None
    reads: str = ""
    """Pattern of the profiles whose results it draws."""

    def digest(self) -> str:
        """Return what changes with the notebook, its parameters, the code and the results it uses.

        Results are those of the profiles it reads, and the JSON files below `outputs/` that it names.
        """
        source = self.source.read_bytes()
        parameters = json.dumps(self.parameters, sort_keys=True).encode()
        text = hashlib.sha256(source)
        text.update(parameters)
        for path in modules_used(self.source):
            text.update(path.read_bytes())
        outputs = _workspace.home() / "outputs"
        for folder in sorted(outputs.glob(self.reads)) if self.reads else ():
            for results in reader.finished(folder.name):
                text.update(results.provenance.read_bytes())
                if results.selected.exists():
                    text.update(results.selected.read_bytes())
            for path in sorted(
                [*folder.glob("*/controls.parquet"), *folder.glob("*/*/suggested/*")]
            ):
                text.update(path.read_bytes())
        for pattern in sorted(set(re.findall(FILES, source + parameters))):
            for path in sorted(outputs.glob(pattern.decode())):
                text.update(path.read_bytes())
        return text.hexdigest()[:16]

    def is_current(self) -> bool:
        """Tell whether the executed notebook is there and nothing that it depends on has changed."""
        try:
            stored = json.loads(self.target.read_text())["metadata"]["softad"]["digest"]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return bool(stored == self.digest())


@dataclass
class Plan:
    """The notebooks of a command: those that train, those that draw, those done already."""

    profile: str
    trainings: list[Task] = field(default_factory=list)
    drawings: list[Task] = field(default_factory=list)
    skipped: list[Task] = field(default_factory=list)
    lacking: dict[str, str] = field(default_factory=dict)
    """Notebooks that cannot be drawn here, and what they need."""

    def lacking_notes(self) -> Iterator[str]:
        """Yield a line for each notebook that cannot be drawn."""
        for name, needs in self.lacking.items():
            yield f"{name} is not drawn; it needs {needs}"


def plan(work: Work, *, draw_only: bool = False) -> Plan:
    """Plan every notebook of prepared work: train what is left, then draw what reads it.

    `draw_only`: train nothing and draw what stored results allow.
    """
    result = Plan(work.profile)
    for study, state in () if draw_only else zip(work.studies, work.states):
        task = Task(
            f"{study.protocol.dataset} × {study.method}",
            _workspace.home() / "notebooks" / f"{TRAIN}.ipynb",
            study.folder.notebook,
            {**study.protocol.to_dict(), "method": study.method, "resume": True},
            study.total_work(),
            study.folder.progress,
        )
        done = state.done and task.target.exists()
        (result.skipped if done else result.trainings).append(task)
    result.trainings.sort(key=lambda task: -task.units)  # the longest first: none is left for last
    whole = work.selection.datasets is None and work.selection.methods is None
    methods: dict[str, set[str]] = {}
    for dataset, method in [*([] if draw_only else work.pairs), *_stored(work.profile)]:
        methods.setdefault(dataset, set()).add(method)
    datasets = list(work.protocols)
    if draw_only:
        asked = work.selection.datasets
        datasets = [name for name in methods if asked is None or name in asked]
        if not datasets:
            raise UserError(
                f"nothing is finished in profile {work.profile!r}; softad run {work.profile} comes first"
            )
    for task in drawings(work.profile, datasets):
        needs = needed_methods(task.source)
        if needs and not any(needs <= trained for trained in methods.values()):
            result.lacking[task.name] = f"{', '.join(sorted(needs))} of one dataset"
        elif task.reads or whole:
            done = task.is_current() and not (task.reads and result.trainings)
            (result.skipped if done else result.drawings).append(task)
    return result


def _stored(profile: str) -> list[tuple[str, str]]:
    """Return (dataset, method) of every finished result."""
    return [(folder.dataset, folder.method) for folder in reader.finished(profile)]


def plan_figures() -> Plan:
    """Plan the notebooks that read no profile."""
    result = Plan(FIGURES)
    for stem, source in _sources().items():
        defaults = parameters_of(source)
        if packages := missing_packages(source):
            install = "pip install 'softadlib[workbook,recipes]'"
            result.lacking[stem] = f"{', '.join(packages)}; install them: {install}"
        elif "profile" not in defaults:
            reads = f"{defaults['profile_read']}*" if "profile_read" in defaults else ""
            task = Task(stem, source, profile_dir(FIGURES) / f"{stem}.ipynb", {}, reads=reads)
            (result.skipped if task.is_current() else result.drawings).append(task)
    return result


def drawings(profile: str, datasets: Sequence[str]) -> list[Task]:
    """Return the notebooks that draw a profile, once per dataset where they take a `dataset`.

    `params/<profile>/figures/<notebook>.yaml` sets further parameters, and names notebooks that read
    no profile but belong to this one all the same. Raises UserError for a bad file.
    """
    tasks, extras = [], _workspace.params_dir() / profile / "figures"
    sources, for_all = _sources(), _parameters_from(profile)
    for path in sorted(extras.glob("*.yaml")):
        choose(f"notebook (named by {path})", path.stem, sources)
    for stem, source in sources.items():
        defaults, extra = parameters_of(source), extras / f"{stem}.yaml"
        if "profile" not in defaults and not extra.exists():
            continue
        parameters = read_yaml(extra) if extra.exists() else {}
        for name in parameters:
            choose(f"parameter in {extra}", name, defaults)
        reads = ""
        if "profile" in defaults:
            reads = profile
            parameters = {"profile": profile, **parameters}
        for dataset in datasets if "dataset" in defaults else [None]:
            name = stem if dataset is None else f"{stem}-{dataset}"
            target = profile_dir(profile) / "figures" / f"{name}.ipynb"
            facts = (
                for_all
                if dataset is None
                else {**_parameters_from(profile, dataset), "dataset": dataset}
            )
            given = {key: value for key, value in facts.items() if key in defaults} | parameters
            tasks.append(Task(name, source, target, given, reads=reads))
    return tasks


def _parameters_from(profile: str, dataset: str | None = None) -> dict[str, Any]:
    """Return what notebooks need to know of a profile, or of one dataset of it, beside its name.

    The lowest label noise where all labels are noisy, and the tie rule where it is not the default.
    """
    names = [name for name in datasets_of(profile) if dataset in (None, name)]
    protocols = [load(profile, name) for name in names]
    lowest = min((noise for p in protocols for noise in p.label_noise), default=0.0)
    rules = {p.ties for p in protocols}
    facts: dict[str, Any] = {"label_noise": lowest} if lowest else {}
    return facts | ({"ties": "smallest"} if rules == {"smallest"} else {})


def _sources() -> dict[str, Path]:
    """Return the notebooks that draw, by name."""
    notebooks = sorted((_workspace.home() / "notebooks").glob("*.ipynb"))
    return {path.stem: path for path in notebooks if path.stem != TRAIN}


def parameters_of(notebook: Path) -> dict[str, str]:
    """Return the defaults of a notebook's cell tagged `parameters`, without quotes, by name."""
    return {name: str(facts["default"]).strip("\"'") for name, facts in _inspect(notebook).items()}


def needed_methods(notebook: Path) -> set[str]:
    """Return the methods that one dataset must have; the comment on `profile` names them.

    `profile: str = "audit"  # the results to read; needs flooding and softad`
    """
    words = str(_inspect(notebook).get("profile", {}).get("help") or "").partition("; needs ")[2]
    return set(words.split(" and ")) if words else set()


def _inspect(notebook: Path) -> dict[str, dict[str, Any]]:
    with skip_iri_grammar():
        import papermill

    with silence_papermill():
        return dict(papermill.inspect_notebook(str(notebook)))


@contextlib.contextmanager
def silence_papermill() -> Iterator[None]:
    """Hide papermill's own lines."""
    logger = logging.getLogger("papermill")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
