"""Execute the notebooks of a plan with papermill; each appears whole or not at all."""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from softadlib import _workspace
from softadlib.results import locks
from softadlib.results.folder import lock_results
from softadlib.training.executors import processes
from softadlib.workbook.notebooks.plan import Plan, Task, silence_papermill
from softadlib.workbook.notebooks.progress_bar import ProgressBar
from softadlib.workbook.prepare import Work
from softadlib.workbook.train import train_on_ray

if TYPE_CHECKING:
    from softadlib.training.executors.ray import RayCluster


@dataclass(frozen=True)
class NotebookResult:
    """The end of a task: an empty `error` means that it succeeded."""

    task: Task
    seconds: float
    error: str = ""


def execute(task: Task, home: str, timeout: int | None, owner: str = "") -> NotebookResult:
    """Execute one notebook; the result appears whole at its target, a failed one beside it.

    `owner`: holder of the locks of the results, so that the kernel may write them.
    """
    import papermill

    os.environ.update(SOFTAD_HOME=home, OMP_NUM_THREADS="1", PYDEVD_DISABLE_FILE_VALIDATION="1")
    os.environ[locks.OWNER] = owner
    started = time.monotonic()
    running = task.target.with_name(f".{task.target.stem}.{os.getpid()}.ipynb")
    failed = task.target.with_name(f"{task.target.stem}.error.ipynb")
    digest = "" if task.units else task.digest()
    log = Path(home) / "outputs" / ".log"  # kernels write to stderr, which the bar uses
    error = ""
    try:
        running.parent.mkdir(parents=True, exist_ok=True)
        with silence_papermill(), _stderr_to(log):
            papermill.execute_notebook(
                str(task.source),
                str(running),
                dict(task.parameters),
                kernel_name="python3",
                progress_bar=False,
                execution_timeout=timeout,
                start_timeout=180,
            )
        notebook = json.loads(running.read_text())
        notebook["metadata"]["softad"] = {"digest": digest}
        _workspace.write(task.target, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
        failed.unlink(missing_ok=True)
    except Exception as problem:  # one failure must not stop the other notebooks
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
    """Name the notebook, the cell, what happened and where to look, on one line."""
    from papermill.exceptions import PapermillExecutionError

    where = f"notebooks/{task.source.name}"
    if isinstance(problem, PapermillExecutionError):
        what, cell = f"{problem.ename}: {problem.evalue}", f" In [{problem.exec_count}]"
    else:
        what, cell = f"{type(problem).__name__}: {problem}", _last_started(failed)
    what = " ".join(what.split())[:600]
    stopped = f"; the notebook as it stopped: {failed}" if failed.exists() else ""
    return f"{task.name} failed in {where}{cell}: {what}{stopped}"


def _last_started(notebook: Path) -> str:
    """Find the cell that a kernel was in when it died; papermill marks it as completed."""
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
    plan: Plan,
    *,
    jobs: int,
    timeout: int | None = None,
    work: Work | None = None,
    cluster: "RayCluster | None" = None,
) -> list[NotebookResult]:
    """Execute a plan in `jobs` processes, trainings first; a failure does not stop the others.

    With a `cluster` it trains `work` first, and the notebooks then show results that are stored.
    Raises UserError where another process is at work on one of the trainings.
    """
    outcomes: list[NotebookResult] = []
    tasks = [*plan.trainings, *plan.drawings]
    locked = lock_results(plan.profile, work.pairs if work else [])
    with locked, ProgressBar([(t.name, t.units, t.progress) for t in tasks]) as bar:

        def take(results: Iterable[NotebookResult]) -> None:
            for outcome in results:
                outcomes.append(outcome)
                bar.finished(outcome.task.name, outcome.seconds, outcome.error)

        trainings = plan.trainings
        if work and cluster:
            names = {task.name for task in trainings}
            left = [s for s in work.studies if f"{s.protocol.dataset} × {s.method}" in names]
            errors = train_on_ray(left, cluster)
            failed = {" × ".join(pair): error for pair, error in errors.items()}
            take(
                NotebookResult(task, 0.0, f"{task.name}: {failed[task.name]}")
                for task in trainings
                if task.name in failed
            )
            # a stored result is complete whatever device made it; only the CPU never asks for more
            trainings = [
                replace(task, parameters={**task.parameters, "device": "cpu"})
                for task in trainings
                if task.name not in failed
            ]
        share = jobs // max(len(trainings), 1)
        if share > 1:  # fewer trainings than processes: each uses several
            trainings = [
                replace(task, parameters={**task.parameters, "jobs": share}) for task in trainings
            ]
        take(_execute_all(trainings, jobs, timeout))
        take(_execute_all(plan.drawings, jobs, timeout))
    return outcomes


def _execute_all(tasks: Sequence[Task], jobs: int, timeout: int | None) -> Iterator[NotebookResult]:
    """Yield the results as they end; a process that is killed fails the tasks that are left."""
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    ended: set[str] = set()
    context = (str(_workspace.home()), timeout, os.environ.get(locks.OWNER, ""))
    calls = (
        delayed(processes.run_with_parent)(os.getpid(), execute, task, *context) for task in tasks
    )
    try:
        for outcome in Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)(calls):
            ended.add(outcome.task.name)
            yield outcome
    except TerminatedWorkerError:
        for task in tasks:
            if task.name not in ended:
                error = f"{task.name}: its process was killed (out of memory?); run again"
                yield NotebookResult(task, 0.0, error)
