"""What there is to execute: a notebook per dataset × method, then those that draw and tabulate."""

import contextlib
import hashlib
import json
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import softadlib
from softadlib import _workspace
from softadlib._validation import MissingData, choose
from softadlib.models import build
from softadlib.results import reader as store
from softadlib.results.folder import profile_dir
from softadlib.training.inputs import load_splits
from softadlib.training.profiles import datasets_of, load, read_yaml
from softadlib.training.protocol import Protocol
from softadlib.training.study import Study

if TYPE_CHECKING:
    from softadlib.training.executors.ray import RayCluster

    pass

TRAIN = "train"
"""The notebook executed once per dataset × method; all others draw."""


@dataclass(frozen=True)
class Task:
    """One notebook to execute with one set of parameters."""

    name: str
    source: Path
    target: Path
    parameters: dict[str, Any]
    units: int = 0
    digest: str = ""
    progress: Path | None = None
    reads: bool = False
    """True where it needs what the training notebooks write."""


@dataclass
class Plan:
    """All work of a call, checked before any of it starts."""

    profile: str
    protocols: dict[str, Protocol]
    tasks: list[Task]
    pairs: list[tuple[str, str]] = field(default_factory=list)
    """(dataset, method) of every training, done or not."""
    skipped: list[Task] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    stored: list[str] = field(default_factory=list)
    """What earlier calls trained of the datasets that are not finished, in words."""


def stored(studies: Iterable[Study]) -> list[str]:
    """A line for each dataset of which some runs are trained and some are not."""
    counts: dict[str, tuple[int, int]] = {}
    for one in studies:
        have, total = counts.get(one.protocol.dataset, (0, 0))
        counts[one.protocol.dataset] = have + one.stored(), total + len(one.runs)
    return [
        f"{dataset}: {have:,} of {total:,} runs are trained already"
        for dataset, (have, total) in counts.items()
        if 0 < have < total
    ]


def protocols(
    profile: str, datasets: Sequence[str] | None = None, overrides: Mapping[str, Any] | None = None
) -> tuple[dict[str, Protocol], list[str]]:
    """The checked protocols of a profile, all or those of `datasets`, and what was left out and why.

    A dataset of the profile that is not on this machine is left out, never replaced; one that was
    asked for by name raises UserError, as all bad input does.
    """
    params = _workspace.params_dir()
    there = datasets_of(profile, params)
    for name in datasets or ():
        choose("dataset", name, there)
    found, left_out = {}, []
    for dataset in there if datasets is None else dict.fromkeys(datasets):
        protocol = load(profile, dataset, params, overrides)
        try:
            for noise in protocol.label_noise:  # what is broken is refused before anything starts
                splits = load_splits(protocol, noise, trials=1)
        except MissingData as error:
            if datasets is not None:
                raise
            left_out.append(f"left out: {error}")
            continue
        build(protocol.model, splits.shape, splits.classes, seed=0)
        found[dataset] = protocol
    return found, left_out


def methods_of(protocol: Protocol, methods: Sequence[str] | None) -> list[str]:
    """The methods to train, all of the protocol's or the named ones. Raises UserError."""
    for name in methods or ():
        choose(
            f"method for {protocol.dataset} in profile {protocol.profile}", name, protocol.methods
        )
    return [m for m in protocol.methods if methods is None or m in methods]


def plan(
    profile: str,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    cluster: "RayCluster | None" = None,
) -> Plan:
    """Every notebook to execute, and those already done. Raises UserError for any bad input."""
    found, left_out = protocols(profile, datasets, overrides)
    _workspace.check_writable(profile_dir(profile))
    out, studies = Plan(profile, found, [], left_out=left_out), []
    for protocol in found.values():
        for method in methods_of(protocol, methods):
            where = cluster.device(protocol) if cluster else None
            study = Study(protocol, method, where)
            studies.append(study)
            out.pairs.append((protocol.dataset, method))
            task = Task(
                f"{protocol.dataset} × {method}",
                _workspace.home() / "notebooks" / f"{TRAIN}.ipynb",
                study.place.notebook,
                {**protocol.to_dict(), "method": method, "resume": True},
                study.units(),
                progress=study.place.progress,
            )
            done = study.done()  # looked at in any case: a broken table is refused here
            (out.skipped if done and task.target.exists() else out.tasks).append(task)
    out.stored = stored(studies)
    out.tasks.sort(key=lambda task: -task.units)  # the longest first, so that none is left for last
    training = bool(out.tasks)
    for task in figure_tasks(profile, list(found)):
        done = _is_current(task) and not (task.reads and training)
        (out.skipped if done else out.tasks).append(task)
    return out


def figure_tasks(profile: str, datasets: Sequence[str]) -> list[Task]:
    """The notebooks that draw: each once, or once per dataset where they take a `dataset`.

    `params/<profile>/figures/<notebook>.yaml` may set further parameters.
    """
    tasks, extras = [], _workspace.params_dir() / profile / "figures"
    sources = {p.stem: p for p in sorted((_workspace.home() / "notebooks").glob("*.ipynb"))}
    sources.pop(TRAIN, None)
    for path in sorted(extras.glob("*.yaml")):
        choose(f"notebook (named by {path})", path.stem, sources)
    for stem, source in sources.items():
        known = parameters_of(source)
        given = read_yaml(extras / f"{stem}.yaml") if (extras / f"{stem}.yaml").exists() else {}
        for name in given:
            choose(f"parameter in {extras / f'{stem}.yaml'}", name, known)
        given = ({"profile": profile} if "profile" in known else {}) | given
        for dataset in datasets if "dataset" in known else [None]:
            name = stem if dataset is None else f"{stem}-{dataset}"
            parameters = given if dataset is None else {**given, "dataset": dataset}
            tasks.append(
                Task(
                    name,
                    source,
                    profile_dir(profile) / "figures" / f"{name}.ipynb",
                    parameters,
                    digest=_digest(source, parameters, profile),
                    reads="profile" in known,
                )
            )
    return tasks


def parameters_of(notebook: Path) -> dict[str, str]:
    """The names in a notebook's cell tagged `parameters`, with their help."""
    import papermill

    with silence_papermill():
        return {k: v["help"] for k, v in papermill.inspect_notebook(str(notebook)).items()}


def _digest(source: Path, parameters: Mapping[str, Any], profile: str) -> str:
    """Changes with the notebook, its parameters, the library and, for one that reads, the results."""
    text = hashlib.sha256(source.read_bytes())
    text.update(json.dumps(parameters, sort_keys=True).encode())
    for path in sorted(Path(softadlib.__file__).parent.rglob("*.py")):
        text.update(path.read_bytes())
    if "profile" in parameters:
        for folder in store.places(profile):
            text.update((folder / "provenance.json").read_bytes())
    return text.hexdigest()[:16]


def _is_current(task: Task) -> bool:
    try:
        return json.loads(task.target.read_text())["metadata"]["softad"]["digest"] == task.digest
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextlib.contextmanager
def silence_papermill() -> Iterator[None]:
    """Without papermill's own lines."""
    logger = logging.getLogger("papermill")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
