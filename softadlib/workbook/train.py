"""Train prepared work without notebooks: on this machine, one shard of it, or on a Ray cluster."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING

from softadlib import _workspace
from softadlib._validation import UserError
from softadlib.results import sample_losses
from softadlib.results.folder import lock_results
from softadlib.results.paths import profile_dir
from softadlib.training import study
from softadlib.training.executors import shards
from softadlib.training.progress import ProgressCallback, no_progress
from softadlib.training.study_plan import Study
from softadlib.workbook.notebooks.progress_bar import ProgressBar
from softadlib.workbook.prepare import Work

if TYPE_CHECKING:
    from softadlib.training.executors.ray import RayCluster
    from softadlib.training.protocol import Protocol, Run


def train(
    work: Work,
    *,
    jobs: int = 1,
    fresh: bool = False,
    losses: bool = False,
    cluster: "RayCluster | None" = None,
) -> list[str]:
    """Train what is left and return the errors of a cluster, one line each. Raises UserError.

    `losses`: as of `study.run`.
    """
    names = {pair: " × ".join(pair) for pair in work.pairs}
    units, stored = {}, dict.fromkeys(work.pairs, 0)
    for pair, part in zip(work.pairs, work.studies):
        units[pair] = part.total_work() + (part.losses_work() if losses else 0)
    if not fresh:
        for pair, part, state in zip(work.pairs, work.studies, work.states):
            stored[pair] = part.stored_work(state, losses)
    tasks = [(names[pair], units[pair], None) for pair in work.pairs]
    locked = lock_results(work.profile, work.pairs, shared=work.selection.shard is not None)
    with locked, ProgressBar(tasks, "trainings", sum(stored.values())) as bar:
        if cluster:
            progress = skip_stored(sum(stored.values()), bar.advance)
            return list(train_on_ray(work.studies, cluster, progress, fresh, losses).values())
        for pair, part in zip(work.pairs, work.studies):
            started = time.monotonic()
            study.run(
                part.protocol,
                part.method,
                jobs=jobs,
                resume=not fresh,
                progress=skip_stored(stored[pair], bar.advance),
                trials=part.trials,
                losses=losses,
            )
            worked = stored[pair] < units[pair]
            bar.finished(names[pair], time.monotonic() - started if worked else None)
    return []


def skip_stored(stored: int, progress: ProgressCallback) -> ProgressCallback:
    """Report all units but the first `stored`, which are those of earlier calls."""
    left = stored

    def report(units: int) -> None:
        nonlocal left
        earlier = min(units, left)
        left -= earlier
        progress(units - earlier)

    return report


def train_on_ray(
    studies: Sequence[Study],
    cluster: "RayCluster",
    progress: ProgressCallback = no_progress,
    fresh: bool = False,
    losses: bool = False,
) -> dict[tuple[str, str], str]:
    """Train on a cluster and return the error of every (dataset, method) that failed."""
    lock, errors = threading.Lock(), {}

    def report(units: int) -> None:
        with lock:
            progress(units)

    def train_one(part: Study) -> None:
        executor = cluster.executor(part.protocol)
        study.run(
            part.protocol,
            part.method,
            resume=not fresh,
            progress=report,
            executor=executor,
            losses=losses,
        )

    # A thread for each study, in which it waits: tasks of all studies fill the cluster.
    with ThreadPoolExecutor(max(1, len(studies))) as threads:
        futures = {threads.submit(train_one, part): part for part in studies}
        try:
            for future in as_completed(futures):
                try:
                    future.result()
                except UserError as error:
                    part = futures[future]
                    errors[part.protocol.dataset, part.method] = str(error)
        except BaseException:
            cluster.stopped.set()  # the threads end within a second
            raise
    return errors


def dry_run_notes(work: Work, fresh: bool, losses: bool) -> Iterator[str]:
    """Yield what `--fresh` and `--losses` would do beside the runs that a dry run counts."""
    if fresh:
        stored = sum(state.trained for state in work.states)
        yield f"--fresh forgets {stored:,} stored runs first; below they count as done"
    if losses:
        yield "--losses then trains the selected runs again, which is not counted below"


def loss_notes(work: Work) -> Iterator[str]:
    """Yield a line for each study whose runs ended elsewhere when trained again for their losses."""
    for part in work.studies:
        rows, _ = part.stored_rows()
        apart = sample_losses.end_differences(sample_losses.stored(part.folder), rows)
        if apart.any():
            yield (
                f"{part.protocol.dataset} × {part.method}: {(apart > 0).sum()} of {len(apart)} runs, trained "
                f"again, end up to {apart.max():.2g} nats of test loss from their stored rows, which another "
                "kind of machine or torch made; selected.parquet has their own losses"
            )


def shard_note(work: Work) -> str:
    """Say what to do once every shard is trained."""
    assert work.selection.shard is not None
    trials = sum(len(part.trials or ()) for part in work.studies)
    count = shards.parse(work.selection.shard)[1]
    return (
        f"shard {work.selection.shard}: {trials} trials are trained; when all {count} shards are, and "
        "their outputs/ in one folder, the same command without --shard puts them together"
    )


def train_controls(profile: str, datasets: Sequence[str] | None, jobs: int) -> int:
    """Train the missing controls of a profile's selected runs; return of how many. Raises UserError."""
    from softadlib.experiments.audit import controls

    names = {protocol.dataset for protocol, _ in controls.plan(profile, datasets)}
    _workspace.check_writable(profile_dir(profile))
    with lock_results(profile, [(name, "softad") for name in sorted(names)]):
        return _train_controls(controls.plan(profile, datasets), jobs)


def _train_controls(todo: "Sequence[tuple[Protocol, Run]]", jobs: int) -> int:
    """Train the controls of `todo`, and show how far they are."""
    from softadlib.experiments.audit import controls

    left = Counter(protocol.dataset for protocol, _ in todo)
    started = time.monotonic()
    with ProgressBar([(name, runs, None) for name, runs in left.items()], "datasets") as bar:
        for protocol in controls.train_controls(todo, jobs):
            bar.advance(1)
            left[protocol.dataset] -= 1
            if not left[protocol.dataset]:
                bar.finished(protocol.dataset, time.monotonic() - started)
    return len(todo)
