"""The `softad` command. Bad input is one line on stderr and exit status 2; a failed notebook is 1."""

import argparse
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from softadlib import __version__
from softadlib._validation import UserError
from softadlib.training.executors import processes
from softadlib.workbook import cli_options

if TYPE_CHECKING:
    from softadlib.training.protocol import Protocol


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="softad", description="Run, read and report the workbook."
    )
    parser.add_argument("--version", action="version", version=f"softadlib {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument(
            "profile", metavar="PROFILE", help="a folder under params/: smoke, quick, paper"
        )
        return sub

    command = add("run", "Execute the notebooks of a profile: train, then draw.")
    cli_options.sweep(command)
    command.add_argument(
        "--timeout", type=int, metavar="S", help="give up on a cell after S seconds"
    )
    command.add_argument(
        "--emit-slurm", type=int, metavar="N", help="print an array script of N shards, run nothing"
    )
    command = add("train", "Run the sweeps of a profile without notebooks; the same files.")
    cli_options.sweep(command)
    command.add_argument("--fresh", action="store_true", help="forget earlier results first")
    data = commands.add_parser("data", help="List or prepare image sets.").add_subparsers(
        dest="action", required=True, metavar="list | prepare"
    )
    data.add_parser("list", help="The image sets, and which are here.")
    prepare = data.add_parser("prepare", help="Write a set as one file that needs no internet.")
    prepare.add_argument("name", metavar="NAME", help="a known set, or a name for your own")
    prepare.add_argument(
        "--from-folder",
        metavar="DIR",
        help="images of your own: DIR/train/<class>/*, DIR/test/<class>/*",
    )
    command = commands.add_parser(
        "bench",
        help="Time the published loop against ours.",
        description="Time the published loop against ours, side by side on this machine.",
    )
    command.add_argument("--case", action="append", metavar="C", help="this case only (repeatable)")
    command.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    command.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="take the median of N (default 3)"
    )
    command.add_argument("--json", metavar="FILE", help="write the figures there too")
    add("report", "Write outputs/PROFILE/index.html from the executed notebooks.")
    export = commands.add_parser("export", help="Send finished results elsewhere.").add_subparsers(
        dest="action", required=True, metavar="mlflow"
    )
    mlflow = export.add_parser(
        "mlflow", help="Parameters, metrics, pictures and provenance to an MLflow store."
    )
    mlflow.add_argument("profile", metavar="PROFILE", help="a folder under outputs/")
    mlflow.add_argument(
        "--uri",
        metavar="URI",
        help="sqlite:///FILE, http://HOST:PORT (default: $MLFLOW_TRACKING_URI, or outputs/mlflow.db)",
    )
    command = add("audit", "Train the controls that the audit compares a profile's results with.")
    command.add_argument("--dataset", action="append", metavar="D", help="this one (repeatable)")
    command.add_argument("-j", "--jobs", type=int, metavar="N", help="processes (default: cores)")
    command = add("results", "Print the paper's tables beside ours as Markdown.")
    command.add_argument("--write", metavar="FILE", help="put them between the marks in FILE")
    command.add_argument("--csv", metavar="DIR", help="put each of them into DIR as a CSV file")
    return parser


def _run(args: argparse.Namespace) -> int:
    import contextlib

    from softadlib.workbook.notebooks import execute as batch
    from softadlib.workbook.notebooks import plan as plans

    if args.timeout is not None and args.timeout < 1:
        raise UserError(f"--timeout must be at least 1 second, got {args.timeout}")
    if args.emit_slurm is not None:
        print(cli_options.array_script(args), end="")
        return 0
    if args.shard is not None:
        return _train(args)  # a part has nothing to draw yet
    overrides = cli_options.overrides(args.parameters)
    with cli_options.cluster(args) or contextlib.nullcontext() as cluster:
        work = plans.plan(args.profile, args.dataset, args.method, overrides, cluster)
        jobs = 1 if cluster else cli_options.jobs(args.jobs, work.protocols)
        _notes(work.protocols, work.left_out + work.stored)
        if work.skipped:
            every = len(work.skipped) + len(work.tasks)
            _say(f"{len(work.skipped)} of {every} notebooks are already done")
        outcomes = batch.run(work, jobs=jobs, timeout=args.timeout, cluster=cluster)
    failures = [o.error for o in outcomes if o.error]
    for line in failures:
        _say(line)
    if failures:
        _say(
            f"{len(failures)} of {len(outcomes)} notebooks failed; the same command tries them again"
        )
    return 1 if failures else 0


def _train(args: argparse.Namespace) -> int:
    import contextlib

    from softadlib.workbook import train as sweeps

    overrides = cli_options.overrides(args.parameters)
    with cli_options.cluster(args) or contextlib.nullcontext() as cluster:
        errors, word = sweeps.run(
            args.profile,
            args.dataset,
            args.method,
            overrides,
            jobs=lambda found: 1 if cluster else cli_options.jobs(args.jobs, found),
            fresh=getattr(args, "fresh", False),
            shard=args.shard,
            cluster=cluster,
            note=_notes,
        )
    for line in (*errors, *([word] if word else [])):
        _say(line)
    return 1 if errors else 0


def _data(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from softadlib.data import images

    if args.action == "list":
        for name in images.IMAGES:
            print(f"{name:13} {images.available(name):11} {images.SIZES[name]}")
        print(f"data root: {images.data_root()}")
        return 0
    with tqdm(desc=args.name, unit="image", disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        path, digest = images.prepare(args.name, args.from_folder, progress)
    print(f"{path}  {path.stat().st_size} bytes  sha256 {digest}")
    return 0


def _bench(args: argparse.Namespace) -> int:
    import json
    from pathlib import Path

    from softadlib import _workspace
    from softadlib.workbook.bench import cases as bench_cases
    from softadlib.workbook.bench import run as bench

    if args.rounds < 1:
        raise UserError(f"--rounds must be at least 1, got {args.rounds}")
    if args.json:
        _workspace.check_writable(Path(args.json).absolute().parent)
    watch = _say if sys.stderr.isatty() else lambda line: None
    made = bench.Bench(args.device, args.rounds, watch)
    table = made.table(args.case or bench_cases.CASES)
    print(bench.words(table))
    if args.json:
        _workspace.write(Path(args.json), json.dumps(table, indent=1) + "\n")
    return 0


def _report(args: argparse.Namespace) -> int:
    from softadlib.workbook import report

    print(report.build(args.profile))
    return 0


def _results(args: argparse.Namespace) -> int:
    from pathlib import Path

    from softadlib.analysis import markdown as results

    if args.csv:
        for path in results.write_csv(args.profile, Path(args.csv)):
            print(path)
    if args.write:
        changed = results.write(args.profile, Path(args.write))
        print(f"{args.write}: {'written' if changed else 'as it was'}")
    if not args.csv and not args.write:
        print(results.markdown(args.profile), end="")
    return 0


def _audit(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from softadlib.experiments.audit import controls

    jobs = (os.cpu_count() or 1) if args.jobs is None else cli_options.jobs(args.jobs, {})
    todo = controls.plan(args.profile, args.dataset)
    for _ in tqdm(controls.make(todo, jobs), total=len(todo), unit="run", disable=None):
        pass
    return 0


def _export(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from softadlib.workbook import mlflow_export

    with tqdm(desc=args.action, unit=" trainings", disable=None) as bar:
        sent = mlflow_export.export(args.profile, args.uri, bar.update)
    print(
        f"{sent.uri}: {sent.logged} trainings sent, {sent.found} there already, "
        f"{sent.withdrawn} old runs marked as deleted"
    )
    return 0


def _notes(protocols: Mapping[str, "Protocol"], words: list[str]) -> None:
    cliffs = [note for p in protocols.values() if (note := p.cliff_note())]
    for line in (*words, *cliffs):
        _say(f"note: {line}")


def _say(line: str) -> None:
    print(f"softad: {line}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `softad` command; returns the exit status."""
    args = _parser().parse_args(argv)
    try:
        verbs = {"run": _run, "train": _train, "report": _report, "data": _data, "bench": _bench}
        verbs["audit"] = _audit
        verbs |= {"results": _results, "export": _export}
        with processes.stopped_by_term(), warnings.catch_warnings():
            # of loky, which puts another in its place
            warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
            return verbs[args.command](args)
    except UserError as error:
        _say(str(error))
        return 2
    except ModuleNotFoundError as error:
        _say(
            f"{error.name} is not installed; install the workbook with: pip install 'softadlib[workbook]'"
        )
        return 2
    except OSError as error:
        _say(f"{error.filename or 'a file'}: {error.strerror or error}")
        return 2
    except KeyboardInterrupt as stop:
        _say("stopped; the same command goes on from here")
        return 143 if isinstance(stop, processes.Terminated) else 130


if __name__ == "__main__":
    raise SystemExit(main())
