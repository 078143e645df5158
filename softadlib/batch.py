"""papermill over datasets × methods, then over the notebooks that draw and tabulate."""

import contextlib
import hashlib
import json
import logging
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import guard, store
from .errors import MissingData, choose
from .models import build
from .profiles import datasets_of, load, read_yaml
from .progress import Bar
from .protocol import Protocol
from .splits import load_splits
from .study import Study

if TYPE_CHECKING:
    from .cluster import Cluster

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


@dataclass(frozen=True)
class Outcome:
    """What became of a task: empty `error` means it succeeded."""

    task: Task
    seconds: float
    error: str = ""


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
    params = store.params_dir()
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
    cluster: "Cluster | None" = None,
) -> Plan:
    """Every notebook to execute, and those already done. Raises UserError for any bad input."""
    found, left_out = protocols(profile, datasets, overrides)
    store.check_writable(store.profile_dir(profile))
    out, studies = Plan(profile, found, [], left_out=left_out), []
    for protocol in found.values():
        for method in methods_of(protocol, methods):
            where = cluster.device(protocol) if cluster else None
            study = Study(protocol, method, where)
            studies.append(study)
            out.pairs.append((protocol.dataset, method))
            task = Task(
                f"{protocol.dataset} × {method}",
                store.home() / "notebooks" / f"{TRAIN}.ipynb",
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
    for task in drawings(profile, list(found)):
        done = _drawn(task) and not (task.reads and training)
        (out.skipped if done else out.tasks).append(task)
    return out


def drawings(profile: str, datasets: Sequence[str]) -> list[Task]:
    """The notebooks that draw: each once, or once per dataset where they take a `dataset`.

    `params/<profile>/figures/<notebook>.yaml` may set further parameters.
    """
    tasks, extras = [], store.params_dir() / profile / "figures"
    sources = {p.stem: p for p in sorted((store.home() / "notebooks").glob("*.ipynb"))}
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
                    store.profile_dir(profile) / "figures" / f"{name}.ipynb",
                    parameters,
                    digest=_digest(source, parameters, profile),
                    reads="profile" in known,
                )
            )
    return tasks


def parameters_of(notebook: Path) -> dict[str, str]:
    """The names in a notebook's cell tagged `parameters`, with their help."""
    import papermill

    with _quiet():
        return {k: v["help"] for k, v in papermill.inspect_notebook(str(notebook)).items()}


def _digest(source: Path, parameters: Mapping[str, Any], profile: str) -> str:
    """Changes with the notebook, its parameters, the library and, for one that reads, the results."""
    text = hashlib.sha256(source.read_bytes())
    text.update(json.dumps(parameters, sort_keys=True).encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        text.update(path.read_bytes())
    if "profile" in parameters:
        for folder in store.places(profile):
            text.update((folder / "provenance.json").read_bytes())
    return text.hexdigest()[:16]


def _drawn(task: Task) -> bool:
    try:
        return json.loads(task.target.read_text())["metadata"]["softad"]["digest"] == task.digest
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("papermill")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def execute(task: Task, home: str, timeout: int | None, family: str = "") -> Outcome:
    """Run one notebook; the finished one appears whole at its place, one that failed beside it.

    `family`: who has claimed the results, so that the kernel may write them.
    """
    import papermill

    os.environ.update(SOFTAD_HOME=home, OMP_NUM_THREADS="1", PYDEVD_DISABLE_FILE_VALIDATION="1")
    os.environ[guard.FAMILY] = family
    started, running = (
        time.monotonic(),
        task.target.with_name(f".{task.target.stem}.{os.getpid()}.ipynb"),
    )
    failed = task.target.with_name(f"{task.target.stem}.error.ipynb")
    log = store.home() / "outputs" / ".log"  # kernels talk on stderr: a bar shares it otherwise
    error = ""
    try:
        running.parent.mkdir(parents=True, exist_ok=True)
        with _quiet(), _stderr_to(log):
            papermill.execute_notebook(
                str(task.source),
                str(running),
                task.parameters,
                kernel_name="python3",
                progress_bar=False,
                execution_timeout=timeout,
                start_timeout=180,
            )
        notebook = json.loads(running.read_text())
        notebook["metadata"]["softad"] = {"digest": task.digest}
        store.write(task.target, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
        failed.unlink(missing_ok=True)
    except Exception as problem:  # whatever it was, the other notebooks go on
        if running.exists():
            os.replace(running, failed)
        error = _explain(problem, task, failed)
    finally:
        running.unlink(missing_ok=True)
    return Outcome(task, time.monotonic() - started, error)


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = os.dup(2)
    with open(path, "ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _explain(problem: Exception, task: Task, failed: Path) -> str:
    """Notebook, cell, what happened and where to look, on one line."""
    from papermill.exceptions import PapermillExecutionError

    where = f"notebooks/{task.source.name}"
    if isinstance(problem, PapermillExecutionError):
        what, cell = f"{problem.ename}: {problem.evalue}", f" In [{problem.exec_count}]"
    else:
        what, cell = f"{type(problem).__name__}: {problem}", _last_started(failed)
    what = " ".join(what.split())[:600]
    kept = f"; the notebook as it stopped: {failed}" if failed.exists() else ""
    return f"{task.name} failed in {where}{cell}: {what}{kept}"


def _last_started(notebook: Path) -> str:
    """Which cell a kernel that died or ran out of time was in; papermill marks it as completed."""
    try:
        cells = json.loads(notebook.read_text())["cells"]
    except (OSError, ValueError, KeyError):
        return ""
    cells = [c for c in cells if c["cell_type"] == "code"]
    begun = [
        i for i, c in enumerate(cells, 1) if c["metadata"].get("papermill", {}).get("start_time")
    ]
    return f" In [{begun[-1]}]" if begun else ""


def run(
    work: Plan, *, jobs: int, timeout: int | None = None, cluster: "Cluster | None" = None
) -> list[Outcome]:
    """Execute a plan in `jobs` processes, trainings first; failures do not stop the others.

    On a `cluster` the trainings are over before their notebooks, which then draw. Raises UserError
    where another process is at work on one of its trainings.
    """
    outcomes: list[Outcome] = []
    claim = store.claim(work.profile, work.pairs)
    with claim, Bar([(t.name, t.units, t.progress) for t in work.tasks]) as bar:

        def execute_all(tasks: Sequence[Task]) -> Iterator[Outcome]:
            if cluster:
                from .away import elsewhere

                return elsewhere(tasks, cluster, timeout)
            return _parallel(tasks, jobs, timeout)

        def take(found: Iterable[Outcome]) -> None:
            for outcome in found:
                outcomes.append(outcome)
                bar.finished(outcome.task.name, outcome.error)

        if cluster:
            take(_untrained(work, cluster))
        ended = {o.task.name for o in outcomes}
        take(execute_all([t for t in work.tasks if not t.reads and t.name not in ended]))
        _refresh_digests(work)
        take(execute_all([t for t in work.tasks if t.reads]))
    return outcomes


def _untrained(work: Plan, cluster: "Cluster") -> Iterator[Outcome]:
    """Train on the cluster; those notebooks whose training failed."""
    from .cluster import train

    pairs = {f"{d} × {m}": (p, m) for d, p in work.protocols.items() for m in p.methods}
    tasks = {(pairs[t.name][0].dataset, pairs[t.name][1]): t for t in work.tasks if t.units}
    errors = train([pairs[t.name] for t in tasks.values()], cluster)
    return (Outcome(tasks[pair], 0.0, f"{tasks[pair].name}: {e}") for pair, e in errors.items())


def _refresh_digests(work: Plan) -> None:
    """The trainings changed what the reading notebooks will read."""
    fresh = {t.name: t for t in drawings(work.profile, list(work.protocols))}
    work.tasks = [fresh.get(t.name, t) if t.reads else t for t in work.tasks]


def _parallel(tasks: Sequence[Task], jobs: int, timeout: int | None) -> Iterator[Outcome]:
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    ended: set[str] = set()
    known = (str(store.home()), timeout, os.environ.get(guard.FAMILY, ""))
    calls = (delayed(guard.following)(os.getpid(), execute, task, *known) for task in tasks)
    try:
        for outcome in Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)(calls):
            ended.add(outcome.task.name)
            yield outcome
    except TerminatedWorkerError:
        for task in tasks:
            if task.name not in ended:
                error = f"{task.name}: its process was killed (out of memory?); run again"
                yield Outcome(task, 0.0, error)
