"""The commands of `softad`: each takes the parsed command line and returns the exit status.

Imports are inside the functions, so that `softad --help` does not wait for torch.
"""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softadlib._validation import UserError, choose, real
from softadlib.workbook import cli_options

if TYPE_CHECKING:
    from softadlib.workbook.notebooks.execute import NotebookResult
    from softadlib.workbook.prepare import Work

FORMATS = ("html", "md", "csv")


def run(args: argparse.Namespace) -> int:
    if args.timeout is not None and args.timeout < 1:
        raise UserError(f"--timeout must be at least 1 second, got {args.timeout}")
    from softadlib.workbook.notebooks import kernels

    started = time.monotonic()
    if not args.dry_run:
        kernels.start_server()  # it imports while this process plans
    from softadlib.workbook.notebooks import execute, plan

    if args.profile == plan.FIGURES:
        return _run_figures(args)
    with cli_options.cluster(args) or contextlib.nullcontext() as cluster:
        work, jobs = cli_options.prepare_work(args, cluster)
        notebooks = plan.plan(work, draw_only=args.draw_only)
        _notes(notebooks.lacking_notes())
        if args.dry_run:
            return _print_plan(work, jobs, [t.name for t in notebooks.drawings], args.draw_only)
        if not args.draw_only:
            _notes(work.notes())
        if notebooks.skipped:
            total = len(notebooks.skipped) + len(notebooks.trainings) + len(notebooks.drawings)
            say(f"{len(notebooks.skipped)} of {total} notebooks are already done")
        trained = None if args.draw_only else work
        outcomes = execute.run(
            notebooks, jobs=jobs, timeout=args.timeout, work=trained, cluster=cluster
        )
    return _close(outcomes, started, work.profile, f"softad report {work.profile}")


def _run_figures(args: argparse.Namespace) -> int:
    """Draw the notebooks that read no profile."""
    from softadlib.workbook.notebooks import execute, plan

    cli_options.refuse_training_options(args)
    jobs = cli_options.local_jobs(args.jobs)
    started, notebooks = time.monotonic(), plan.plan_figures()
    _notes(notebooks.lacking_notes())
    if args.dry_run:
        print("notebooks to draw:", ", ".join(t.name for t in notebooks.drawings) or "none")
        return 0
    outcomes = execute.run(notebooks, jobs=jobs, timeout=args.timeout)
    return _close(outcomes, started, plan.FIGURES, "softad report PROFILE shows them")


def _close(
    outcomes: "Sequence[NotebookResult]", started: float, profile: str, following: str
) -> int:
    """Say what was done, in what time and where it is; return the exit status."""
    from softadlib.results.paths import profile_dir
    from softadlib.workbook.notebooks.progress_bar import duration

    failures = [outcome.error for outcome in outcomes if outcome.error]
    if failures:
        if sys.stderr.isatty():  # elsewhere each was a line when it happened
            for line in failures:
                say(line)
        say(
            f"{len(failures)} of {len(outcomes)} notebooks failed; the same command tries them again"
        )
        return 1
    took = duration(time.monotonic() - started)
    say(f"done: {len(outcomes)} notebooks in {took}, {profile_dir(profile)}; next: {following}")
    return 0


def train(args: argparse.Namespace) -> int:
    from softadlib.results.paths import profile_dir
    from softadlib.workbook import train as training
    from softadlib.workbook.notebooks.progress_bar import duration

    if args.losses and args.shard is not None:
        raise UserError(
            "--losses needs whole results; leave --shard out once all shards are trained"
        )
    started = time.monotonic()
    with cli_options.cluster(args) or contextlib.nullcontext() as cluster:
        work, jobs = cli_options.prepare_work(args, cluster, fresh=args.fresh)
        if args.dry_run:
            _notes(training.dry_run_notes(work, args.fresh, args.losses))
            return _print_plan(work, jobs, [])
        if not args.fresh:
            _notes(work.notes())
        errors = training.train(
            work, jobs=jobs, fresh=args.fresh, losses=args.losses, cluster=cluster
        )
    for line in errors:
        say(line)
    if args.losses:
        _notes(training.loss_notes(work))
    if args.shard is not None:
        say(training.shard_note(work))
    elif not errors:
        took = duration(time.monotonic() - started)
        say(f"done: {len(work.studies)} trainings in {took}, {profile_dir(work.profile)}")
    return 1 if errors else 0


def _print_plan(work: "Work", jobs: int, drawings: list[str], draw_only: bool = False) -> int:
    """Print what `run` or `train` would do."""
    from softadlib.workbook import show as overview

    if not draw_only:
        _notes(work.notes())
        print(overview.progress(work, jobs))
    if drawings:
        print("notebooks to draw:", ", ".join(drawings))
    return 0


def slurm(args: argparse.Namespace) -> int:
    from softadlib.training.executors import slurm as array

    cpus = array.CPUS if args.jobs is None else cli_options.local_jobs(args.jobs)
    text = array.script(
        args.profile,
        args.shards,
        datasets=cli_options.split_names(args.dataset),
        methods=cli_options.split_names(args.method),
        parameters=args.parameters,
        overrides=cli_options.overrides(args.parameters),
        cpus=cpus,
    )
    print(text, end="")
    return 0


def show(args: argparse.Namespace) -> int:
    from softadlib.workbook import show as overview

    if args.profile is None:
        print(overview.profiles())
        return 0
    from softadlib.workbook.prepare import prepare

    work = prepare(cli_options.selection(args), read_only=True)
    _notes(work.notes())
    print(overview.progress(work, cli_options.jobs(args.jobs, work.protocols)))
    print()
    print(overview.parameters(work))
    return 0


def report(args: argparse.Namespace) -> int:
    choose("format", args.format, FORMATS)
    if args.format == "html":
        if args.output:
            raise UserError(
                "--output is for --format md and csv; the page is outputs/PROFILE/index.html"
            )
        from softadlib.workbook import report as page

        print(page.build(args.profile))
        return 0
    from softadlib.analysis import markdown, overview
    from softadlib.results.paths import profile_dir

    if args.format == "csv":
        folder = Path(args.output) if args.output else profile_dir(args.profile) / "tables"
        for path in markdown.write_csv(args.profile, folder):
            print(path)
    elif args.output:
        from softadlib.experiments.audit.page import tests

        results = markdown.markdown
        blocks = {"overview": overview.overview, "tests": tests, "results": results}
        changed = markdown.write(args.profile, Path(args.output), blocks)
        print(f"{args.output}: {'written' if changed else 'as it was'}")
    else:
        print(markdown.markdown(args.profile), end="")
    return 0


def export(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    choose("destination (--to)", args.to, ("mlflow",))
    from softadlib.workbook import mlflow_export

    with tqdm(desc=args.to, unit=" trainings", disable=None) as bar:
        sent = mlflow_export.export(args.profile, args.uri, bar.update)
    print(f"{sent.uri}: {sent.logged} trainings sent, {sent.skipped} there already")
    return 0


def data(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from softadlib.data import images

    if args.action == "list":
        for name, entry in images.IMAGES.items():
            print(f"{name:13} {images.available(name):11} {entry.size}")
        print(f"data root: {images.data_root()}")
        return 0
    with tqdm(desc=args.name, unit="image", disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        path, digest = images.prepare(args.name, args.from_folder, progress)
    print(f"{path}  {path.stat().st_size} bytes  sha256 {digest}")
    return 0


def bench(args: argparse.Namespace) -> int:
    from softadlib.workbook.bench import run as timing

    if args.rounds < 1:
        raise UserError(f"--rounds must be at least 1, got {args.rounds}")
    save = _json_writer(args.json)

    def show(line: str) -> None:
        print(line, flush=True)  # rows appear as they end, in a pipe too

    timing.Bench(args.device, args.rounds, show, save).table(args.case or timing.NAMES)
    return 0


def check_device(args: argparse.Namespace) -> int:
    from softadlib.training.device import available_devices, pick_device
    from softadlib.workbook import check_device as checks

    real("--budget", args.budget, low=0)
    save = _json_writer(args.json)
    best = "cuda" if "cuda" in available_devices() else "cpu"
    device = pick_device(best if args.device == "best" else args.device)
    report = checks.check_device(device, args.budget, lambda c: print(checks.line(c), flush=True))
    print(
        f"{report['device']}, torch {report['torch']}: {'passed' if report['passed'] else 'FAILED'}"
    )
    save(report)
    return 0 if report["passed"] else 1


def audit(args: argparse.Namespace) -> int:
    from softadlib.results.paths import profile_dir
    from softadlib.workbook.train import train_controls

    jobs = cli_options.local_jobs(args.jobs)
    datasets = cli_options.split_names(args.dataset)
    runs = train_controls(args.profile, datasets, jobs)
    trained = f"controls of {runs} selected runs trained" if runs else "nothing was left to train"
    say(f"done: {trained}, {profile_dir(args.profile)}")
    return 0


def _notes(lines: Iterable[str]) -> None:
    for line in lines:
        say(f"note: {line}")


def _json_writer(path: str | None) -> Callable[[Mapping[str, Any]], None]:
    """Return what writes a table to the file that is asked for, if any. Raises UserError for one it cannot write."""
    from softadlib import _workspace

    if path is not None:
        if Path(path).is_dir():
            raise UserError(f"--json {path!r} is a folder; name a file")
        if Path(path).is_file() or not Path(path).exists():  # else a device or a pipe
            _workspace.check_writable(Path(path).absolute().parent)

    def save(table: Mapping[str, Any]) -> None:
        if path is not None:
            _workspace.write(Path(path), json.dumps(table, indent=1) + "\n")

    return save


def say(line: str) -> None:
    print(f"softad: {line}", file=sys.stderr, flush=True)
