"""papermill over a plan: each notebook executed into one that appears whole."""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from softadlib import _workspace
from softadlib.results import locks
from softadlib.results.folder import claim
from softadlib.training.executors import processes
from softadlib.workbook.notebooks.plan import Plan, Task, figure_tasks, silence_papermill
from softadlib.workbook.notebooks.progress_bar import ProgressBar

if TYPE_CHECKING:
    from softadlib.training.executors.ray import RayCluster

    pass


@dataclass(frozen=True)
class NotebookResult:
    """What became of a task: empty `error` means it succeeded."""

    task: Task
    seconds: float
    error: str = ""


def execute(task: Task, home: str, timeout: int | None, family: str = "") -> NotebookResult:
    """Run one notebook; the finished one appears whole at its place, one that failed beside it.

    `family`: who has claimed the results, so that the kernel may write them.
    """
    import papermill

    os.environ.update(SOFTAD_HOME=home, OMP_NUM_THREADS="1", PYDEVD_DISABLE_FILE_VALIDATION="1")
    os.environ[locks.FAMILY] = family
    started, running = (
        time.monotonic(),
        task.target.with_name(f".{task.target.stem}.{os.getpid()}.ipynb"),
    )
    failed = task.target.with_name(f"{task.target.stem}.error.ipynb")
    log = (
        _workspace.home() / "outputs" / ".log"
    )  # kernels talk on stderr: a bar shares it otherwise
    error = ""
    try:
        running.parent.mkdir(parents=True, exist_ok=True)
        with silence_papermill(), _stderr_to(log):
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
        _workspace.write(task.target, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
        failed.unlink(missing_ok=True)
    except Exception as problem:  # whatever it was, the other notebooks go on
        if running.exists():
            os.replace(running, failed)
        error = _explain(problem, task, failed)
    finally:
        running.unlink(missing_ok=True)
    return NotebookResult(task, time.monotonic() - started, error)


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
    work: Plan, *, jobs: int, timeout: int | None = None, cluster: "RayCluster | None" = None
) -> list[NotebookResult]:
    """Execute a plan in `jobs` processes, trainings first; failures do not stop the others.

    On a `cluster` the trainings are over before their notebooks, which then draw. Raises UserError
    where another process is at work on one of its trainings.
    """
    outcomes: list[NotebookResult] = []
    locked = claim(work.profile, work.pairs)
    with locked, ProgressBar([(t.name, t.units, t.progress) for t in work.tasks]) as bar:

        def execute_all(tasks: Sequence[Task]) -> Iterator[NotebookResult]:
            if cluster:
                from softadlib.workbook.notebooks.remote import execute_on_ray

                return execute_on_ray(tasks, cluster, timeout)
            return _parallel(tasks, jobs, timeout)

        def take(found: Iterable[NotebookResult]) -> None:
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


def _untrained(work: Plan, cluster: "RayCluster") -> Iterator[NotebookResult]:
    """Train on the cluster; those notebooks whose training failed."""
    from softadlib.training.executors.ray import train

    pairs = {f"{d} × {m}": (p, m) for d, p in work.protocols.items() for m in p.methods}
    tasks = {(pairs[t.name][0].dataset, pairs[t.name][1]): t for t in work.tasks if t.units}
    errors = train([pairs[t.name] for t in tasks.values()], cluster)
    return (
        NotebookResult(tasks[pair], 0.0, f"{tasks[pair].name}: {e}") for pair, e in errors.items()
    )


def _refresh_digests(work: Plan) -> None:
    """The trainings changed what the reading notebooks will read."""
    fresh = {t.name: t for t in figure_tasks(work.profile, list(work.protocols))}
    work.tasks = [fresh.get(t.name, t) if t.reads else t for t in work.tasks]


def _parallel(tasks: Sequence[Task], jobs: int, timeout: int | None) -> Iterator[NotebookResult]:
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    ended: set[str] = set()
    known = (str(_workspace.home()), timeout, os.environ.get(locks.FAMILY, ""))
    calls = (delayed(processes.following)(os.getpid(), execute, task, *known) for task in tasks)
    try:
        for outcome in Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)(calls):
            ended.add(outcome.task.name)
            yield outcome
    except TerminatedWorkerError:
        for task in tasks:
            if task.name not in ended:
                error = f"{task.name}: its process was killed (out of memory?); run again"
                yield NotebookResult(task, 0.0, error)
