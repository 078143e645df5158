"""Notebooks executed on a cluster's nodes: what they read travels with them, what they show comes back."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from softadlib import _workspace
from softadlib._validation import UserError
from softadlib.results import reader as store
from softadlib.training.executors.ray import RayCluster, RayExecutor
from softadlib.workbook.notebooks.execute import NotebookResult, execute
from softadlib.workbook.notebooks.plan import Task

RESULTS = ("metrics.parquet", "provenance.json")


def execute_on_ray(
    tasks: Sequence[Task], cluster: RayCluster, timeout: int | None
) -> Iterator[NotebookResult]:
    """Each task's outcome, its notebook written here, be it whole or as it stopped."""
    home = _workspace.home()
    calls = []
    for task in tasks:
        there = {p: p.read_bytes() for p in _wanted(task)}
        files = {str(p.relative_to(home)): content for p, content in there.items()}
        # results are there, whatever trained them: a node without a GPU draws them too
        given = {**task.parameters, **({"device": "cpu"} if task.units else {})}
        calls.append((dataclasses.replace(task, parameters=given), str(home), files, timeout))
    ended = set()
    executor = RayExecutor(cluster, "cpu")
    try:
        for name, seconds, error, target, content in executor.map(_execute, calls):
            if content is not None:
                _workspace.write(home / target, content)
            task = next(t for t in tasks if t.name == name)
            if not error:
                _failed(task).unlink(missing_ok=True)
            ended.add(name)
            yield NotebookResult(task, seconds, error)
    except UserError as problem:  # workers that died twice
        for task in tasks:
            if task.name not in ended:
                yield NotebookResult(task, 0.0, f"{task.name}: {problem}")


def _failed(task: Task) -> Path:
    return task.target.with_name(f"{task.target.stem}.error.ipynb")


def _wanted(task: Task) -> Iterator[Path]:
    """The notebook, the profiles, small tables that pages draw, and what it reads of results."""
    home = _workspace.home()
    yield task.source
    yield from (p for p in _workspace.params_dir().rglob("*.yaml"))
    yield from (home / "outputs").glob("*.json")
    folders = [task.target.parent] if task.units else []
    if task.reads and not task.units:
        folders = store.places(task.parameters["profile"])
    for folder in folders:
        yield from (folder / name for name in RESULTS if (folder / name).exists())


def _execute(
    task: Task, home: str, files: dict[str, bytes], timeout: int | None
) -> tuple[str, float, str, str, bytes | None]:
    """On a node, in the scratch workbook: name, seconds, error, where the notebook belongs, and it."""
    scratch = Path(os.environ["SOFTAD_HOME"])
    for name, content in files.items():
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        (scratch / name).write_bytes(content)
    source, target = (scratch / p.relative_to(home) for p in (task.source, task.target))
    moved = dataclasses.replace(task, source=source, target=target, progress=None)
    outcome = execute(moved, str(scratch), timeout)
    made = _failed(moved) if outcome.error else target
    page = made.read_bytes() if made.exists() else None
    error = outcome.error.replace(str(scratch), home)
    return task.name, outcome.seconds, error, str(made.relative_to(scratch)), page
