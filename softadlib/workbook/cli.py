# PYTHON_ARGCOMPLETE_OK
"""The `softad` command.

Exit status: 0 done, 1 a notebook failed or memory ran out, 2 bad input (one line on stderr), 130
stopped by Ctrl-C, 141 by a closed pipe, 143 by SIGTERM. Imports are inside the functions, so that
`softad --help` does not wait for torch.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from softadlib import __version__, _workspace
from softadlib._validation import UserError, whole

if TYPE_CHECKING:
    from softadlib.workbook import notebooks
    from softadlib.workbook.work import Work

EXAMPLES = """examples:
  softad run quick                     train and draw profile quick, minutes
  softad run quick --dataset spiral --method softad
  softad draw quick                    draw its pages again, from what is stored
  softad draw                          draw the pages that read no profile
  softad report quick                  write outputs/quick/index.html
  softad show quick                    say what is done and what is left
  softad train quick -p lr=0.05 --as slower
"""
FORMATS = ("html", "md", "csv", "latex")


class SigTerm(KeyboardInterrupt):
    """SIGTERM, as a scheduler sends it before it kills: ends a command as Ctrl-C does."""

    status = 143


class TimeIsUp(KeyboardInterrupt):
    """The time that --until gives is nearly over: ends a command as Ctrl-C does, with status 0."""


def say(line: str) -> None:
    """Print a line for the person, beside the results on stdout."""
    print(f"softad: {line}", file=sys.stderr, flush=True)


# Options that several commands share


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as those of the rest of the command are."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help lists what there is")


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def add_command(commands: Commands, run: Callable[[argparse.Namespace], int], text: str) -> Parser:
    """Add a command that has the name of the function that runs it."""
    command = commands.add_parser(run.__name__, help=text, description=text)
    command.set_defaults(handler=run)
    return command


def add_profile(command: Parser, nargs: str | None = None) -> None:
    """Add the name of a profile; with nargs="?" it may be left out."""
    words = "a folder under params/: smoke, quick, paper …; softad show lists them"
    option = command.add_argument("profile", metavar="PROFILE", help=words, nargs=nargs)
    option.completer = _complete_profiles  # type: ignore[attr-defined]


def add_dataset(command: Parser) -> None:
    """Add the option that says which datasets of a profile are meant."""
    option = command.add_argument(
        "--dataset", action="append", metavar="D", help="only this dataset (repeatable, or D1,D2)"
    )
    option.completer = _complete_datasets  # type: ignore[attr-defined]


def add_selection(command: Parser) -> None:
    """Add the options that say which part of a profile is meant, and what is changed in it."""
    add_dataset(command)
    method = command.add_argument(
        "--method", action="append", metavar="M", help="only this method (repeatable, or M1,M2)"
    )
    parameter = command.add_argument(
        "-p",
        "--parameter",
        dest="changes",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change one parameter of the profile, VALUE as YAML: -p grids.softad=0.1,0.2",
    )
    method.completer = _complete_methods  # type: ignore[attr-defined]
    parameter.completer = _complete_parameters  # type: ignore[attr-defined]


def add_training(command: Parser) -> None:
    """Add the options that say where results go and what trains them."""
    command.add_argument(
        "--as", dest="new_profile", metavar="NAME", help="keep the changes as profile NAME"
    )
    command.add_argument(
        "--scheduler", metavar="A", help="a dask cluster: tcp://HOST:PORT, or a scheduler file"
    )


def add_execution(command: Parser) -> None:
    """Add the options of whatever takes time."""
    command.add_argument(
        "--dry-run", action="store_true", help="print what would be done, and do nothing"
    )
    command.add_argument(
        "-j",
        "--jobs",
        type=int,
        metavar="N",
        help="processes (default: one per core; a GPU has one)",
    )


def add_timeout(command: Parser) -> None:
    """Add the option that stops notebooks."""
    command.add_argument(
        "--timeout", type=int, metavar="S", help="stop a notebook whose cell takes over S seconds"
    )


def _complete_profiles(**_: Any) -> list[str]:
    from softadlib.training.profiles import profile_names

    return profile_names()


def _complete_datasets(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    from softadlib.training.profiles import datasets_of

    return datasets_of(parsed_args.profile)


def _complete_methods(**_: Any) -> list[str]:
    from softadlib.methods import METHODS

    return list(METHODS)


def _complete_parameters(**_: Any) -> list[str]:
    from softadlib.training.protocol import Protocol

    return [f"{name}=" for name in Protocol.names()]


def _names(values: Sequence[str] | None) -> list[str] | None:
    """Return the names of a repeatable option whose values may be lists with commas."""
    if values is None:
        return None
    names = [name for value in values for name in value.split(",") if name]
    if not names:
        raise UserError("--dataset and --method need a name; leave them out for all")
    return names


def _jobs(value: int | None) -> int:
    """Return the number of processes asked for, else one per core that this process may use."""
    if value is None:
        usable = getattr(os, "sched_getaffinity", None)  # Linux alone has it
        return len(usable(0)) if usable else os.cpu_count() or 1
    return whole("--jobs", value, 1)


def _timeout(value: int | None) -> int | None:
    """Return the seconds that a cell may take, None for any number."""
    return None if value is None else whole("--timeout", value, 1)


@contextlib.contextmanager
def _cluster(address: str | None) -> Iterator[Executor | None]:
    """Yield an executor of a dask cluster; None for this machine. Raises UserError."""
    if address is None:
        yield None
        return
    from distributed import Client

    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # it logs tracebacks
    if "://" not in address and not Path(address).is_file():  # the client would wait for it
        raise UserError(
            f"--scheduler must be tcp://HOST:PORT or a file that exists, got {address!r}"
        )
    try:
        place = {"address": address} if "://" in address else {"scheduler_file": address}
        client = Client(**place, timeout=20)
    except (OSError, ValueError) as error:
        what = " ".join(str(error).split())[:120]
        raise UserError(f"no dask scheduler at {address!r} ({what})") from None
    with client:
        # A task whose worker is killed runs again elsewhere.
        try:
            yield client.get_executor(retries=3, pure=False)
        except (CancelledError, OSError):
            if client.status == "running":
                raise
            raise UserError(
                f"the dask scheduler at {address!r} is gone; finished runs are stored, "
                "and the same command with another scheduler goes on from there"
            ) from None


def _prepare(args: argparse.Namespace, **options: Any) -> "tuple[Work, dict[str, Any]]":
    """Return the checked work of a command line, and its changes of parameters."""
    from softadlib.workbook import changes as given
    from softadlib.workbook import work

    datasets, methods = _names(args.dataset), _names(args.method)
    changes, profile = given.parse(args.changes), args.profile
    new = getattr(args, "new_profile", None)
    if new is not None:
        work.derive_profile(profile, new, datasets, methods, changes, write=False)
    prepared = work.prepare(profile, datasets, methods, changes, name=new, **options)
    if new is not None:
        work.derive_profile(profile, new, datasets, methods, changes, write=not args.dry_run)
        changes = {}
    doubts = [] if options.get("stored") else _doubts(prepared)
    for line in [*work.notes(prepared, methods), *doubts]:
        say(f"note: {line}")
    return prepared, changes


def _doubts(prepared: "Work") -> list[str]:
    """Return what may not be meant in data of your own, a line each."""
    from softadlib.data.sets import doubts_about

    lines = []
    for dataset, protocol in prepared.protocols.items():
        found = doubts_about(dataset, protocol.folder, protocol.table, protocol.target)
        lines += [f"{dataset}: {line}" for line in found]
    return lines


def _check_devices(prepared: "Work") -> None:
    """Raise UserError for a device or a precision that this machine does not have."""
    from softadlib.training.device import numerics, pick_device

    for protocol in prepared.protocols.values():
        with numerics(pick_device(protocol.device), protocol.precision):
            pass


# softad run


def add_run(commands: Commands) -> None:
    """Add `softad run`."""
    command = add_command(commands, run, "Train a profile by notebooks, then draw what is missing.")
    add_profile(command)
    add_selection(command)
    add_training(command)
    add_execution(command)
    add_timeout(command)


def run(args: argparse.Namespace) -> int:
    """Train what is left of a profile in notebooks, then draw the pages that are missing."""
    from softadlib.workbook import notebooks, show

    started = time.monotonic()
    jobs, timeout = _jobs(args.jobs), _timeout(args.timeout)
    prepared, changes = _prepare(args)
    _check_devices(prepared)
    if args.dry_run:
        print(show.progress(prepared))
        if (
            args.new_profile
        ):  # it is not there yet, and has the pages of the profile that it is made from
            pages = notebooks.pages_of_profile(args.profile, list(prepared.protocols))
        else:
            datasets = _drawable(prepared.profile, prepared.protocols)
            pages = _pages_to_draw(prepared.profile, datasets, args)
        _print_pages(pages)
        return 0
    outcomes = []
    if args.scheduler:
        _train(prepared, args.scheduler, jobs)
    else:
        training = notebooks.training_pages(prepared.profile, prepared.studies, changes, jobs)
        outcomes = _execute(training, jobs, timeout)
    pages = _pages_to_draw(prepared.profile, _drawable(prepared.profile), args)
    outcomes += _execute(pages, jobs, timeout)
    return _finish(outcomes, started, prepared.profile)


def _drawable(profile: str, planned: Iterable[str] = ()) -> list[str]:
    """Return the datasets of a profile that have a finished result, or will have one."""
    from softadlib.training.profiles import datasets_of
    from softadlib.workbook import notebooks

    known = {*notebooks.stored_datasets(profile), *planned}
    return [name for name in datasets_of(profile) if name in known]


def _pages_to_draw(
    profile: str, datasets: Sequence[str], args: argparse.Namespace
) -> "list[notebooks.Page]":
    """Return the pages that are missing: of named datasets their own, else all of the profile."""
    from softadlib.workbook import notebooks

    pages = notebooks.pages_of_profile(profile, datasets) if datasets else []
    named = _names(args.dataset)
    if named is not None:
        pages = [page for page in pages if page.parameters.get("dataset") in named]
    return notebooks.missing_pages(profile, pages)


def _print_pages(pages: "Sequence[notebooks.Page]") -> None:
    print("notebooks to draw:", ", ".join(page.name for page in pages) or "none")


def _execute(
    pages: "Sequence[notebooks.Page]", jobs: int, timeout: int | None
) -> "list[notebooks.Outcome]":
    """Execute pages and show how far they are; a failure is a line."""
    from tqdm import tqdm

    from softadlib.workbook import notebooks

    outcomes = []
    interval = 0.5 if sys.stderr.isatty() else 60
    running = notebooks.execute(pages, jobs, timeout)
    try:
        with tqdm(total=len(pages), unit="page", mininterval=interval, disable=not pages) as bar:
            for outcome in running:
                outcomes.append(outcome)
                if outcome.error and not outcome.lacks_results:
                    bar.clear()
                    say(outcome.error)
                bar.update()
    except KeyboardInterrupt as stop:
        say("stopped; the same command resumes")
        # Kernels end with their parent; the threads that wait for them would go on.
        os._exit(getattr(stop, "status", 130))
    return outcomes


def _finish(outcomes: "Sequence[notebooks.Outcome]", started: float, profile: str) -> int:
    """Say how the execution of pages ended; return the exit status."""
    from softadlib.results.files import outputs

    lacking = [outcome.page for outcome in outcomes if outcome.lacks_results]
    if lacking:
        names = ", ".join(page.name for page in lacking)
        folder = lacking[0].reason.parent
        say(
            f"not drawn, results that they need are not there: {names}; why: {folder}/*.not-drawn.txt"
        )
    failed = [outcome for outcome in outcomes if outcome.error and not outcome.lacks_results]
    if failed:
        say(f"{len(failed)} of {len(outcomes)} notebooks failed; the same command tries them again")
        return 1
    seconds = time.monotonic() - started
    done = len(outcomes) - len(lacking)
    say(f"done: {done} notebooks in {seconds:.0f} s, {outputs(profile)}")
    return 0


# softad draw


def add_draw(commands: Commands) -> None:
    """Add `softad draw`."""
    command = add_command(commands, draw, "Draw the pages of a profile from what is stored.")
    add_profile(command, nargs="?")
    add_dataset(command)
    add_execution(command)
    add_timeout(command)


def draw(args: argparse.Namespace) -> int:
    """Draw a profile's pages; without a profile the pages that read none."""
    from softadlib._validation import MissingData, choose
    from softadlib.workbook import notebooks

    started = time.monotonic()
    jobs, timeout = _jobs(args.jobs), _timeout(args.timeout)
    if args.profile is None:
        if args.dataset:
            raise UserError("--dataset is of a profile; give softad draw PROFILE --dataset D")
        pages = notebooks.pages_of_no_profile()
    else:
        stored = notebooks.stored_datasets(args.profile)
        if not stored:
            first = f"softad train {args.profile}"
            raise MissingData(f"nothing is finished in profile {args.profile!r}; first: {first}")
        for name in _names(args.dataset) or ():
            choose(f"dataset with results in profile {args.profile}", name, stored)
        pages = notebooks.pages_of_profile(args.profile, _names(args.dataset) or stored)
    if args.dry_run:
        _print_pages(pages)
        return 0
    return _finish(_execute(pages, jobs, timeout), started, args.profile or notebooks.FIGURES)


# softad train


def add_train(commands: Commands) -> None:
    """Add `softad train`."""
    text = "Train a profile without notebooks; it writes the same files."
    command = add_command(commands, train, text)
    add_profile(command)
    add_selection(command)
    add_training(command)
    add_execution(command)
    command.add_argument("--shard", metavar="i/N", help="train every N-th trial, from the i-th on")
    command.add_argument("--fresh", action="store_true", help="delete earlier results first")
    command.add_argument(
        "--until", metavar="TIME", help="stop before this much time is over: 90s, 9m, 2h"
    )


def train(args: argparse.Namespace) -> int:
    """Train what is left of a profile."""
    from softadlib.results.files import outputs
    from softadlib.workbook import show

    started = time.monotonic()
    shard, jobs, until = _shard(args.shard), _jobs(args.jobs), _seconds(args.until)
    prepared, _ = _prepare(args, shard=shard, fresh=args.fresh)
    _check_devices(prepared)
    if args.dry_run:
        print(show.progress(prepared))
        return 0
    try:
        with time_limit(until, started):
            _train(prepared, args.scheduler, jobs)
    except TimeIsUp:
        left = sum(study.as_it_is_now().plan.left for study in prepared.studies)
        say(
            f"stopped since {args.until} are nearly over, {left:,} trainings are left; the same command goes on"
        )
        return 0
    if shard != (1, 1):
        say(
            f"shard {args.shard} is trained; when all {shard[1]} are, and their outputs/ in one folder, "
            "the same command without --shard puts them together"
        )
    seconds, folder = time.monotonic() - started, outputs(prepared.profile)
    say(f"done: {len(prepared.studies)} datasets × methods in {seconds:.0f} s, {folder}")
    return 0


def _seconds(text: str | None) -> float | None:
    """Read a time such as 90s, 9m or 2h. Raises UserError."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None or float(match[1]) == 0:
        raise UserError(f"--until must be a time such as 90s, 9m or 2h, got {text!r}")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


@contextlib.contextmanager
def time_limit(seconds: float | None, started: float) -> Iterator[None]:
    """Raise TimeIsUp shortly before `seconds` have passed since `started`; None is no limit."""
    if seconds is None:
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, stop)
    rest = started + 0.95 * seconds - time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, max(rest, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _shard(text: str | None) -> tuple[int, int]:
    """Read i/N. Raises UserError."""
    match = re.fullmatch(r"(\d+)/(\d+)", text or "1/1")
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"--shard must be i/N with 1 ≤ i ≤ N, such as 3/16, got {text!r}")
    return int(match[1]), int(match[2])


def _train(work: "Work", scheduler: str | None, jobs: int) -> None:
    """Train the studies one after another, each on all processes or on a cluster."""
    from softadlib.training.study import run_study

    with _cluster(scheduler) as executor:
        for study in work.studies:
            run_study(study, jobs=jobs, executor=executor)


# softad show


def add_show(commands: Commands) -> None:
    """Add `softad show`."""
    command = add_command(commands, show, "List profiles; of one, its runs and what is done.")
    add_profile(command, nargs="?")
    add_selection(command)
    command.add_argument(
        "--parameters",
        dest="list_parameters",
        action="store_true",
        help="also list its parameters that differ from their default",
    )
    command.add_argument("--json", action="store_true", help="print it for programs")


def show(args: argparse.Namespace) -> int:
    """Print the profiles, or what a profile holds."""
    from softadlib.workbook import show as overview

    if args.profile is None:
        print(overview.profiles())
        return 0
    prepared, _ = _prepare(args, stored=True)
    if args.json:
        print(json.dumps(overview.facts(prepared), indent=1))
        return 0
    print(overview.progress(prepared))
    if args.list_parameters:
        print(f"\n{overview.parameters(prepared, _names(args.method))}")
    return 0


# softad report


def add_report(commands: Commands) -> None:
    """Add `softad report`."""
    command = add_command(commands, report, "Write a profile's results as a page or as tables.")
    add_profile(command)
    command.add_argument("--format", default="html", choices=FORMATS, help="default: html")
    command.add_argument(
        "--output",
        metavar="PATH",
        help="html, latex: the file; csv: the folder; md: a file, between its marks where it has some",
    )


def report(args: argparse.Namespace) -> int:
    """Write a profile's results."""
    from softadlib.results.files import outputs

    output = Path(args.output) if args.output else None
    if args.format == "html":
        from softadlib.workbook import report as page

        print(page.build(args.profile, output))
        return 0
    from softadlib.analysis import markdown

    if args.format == "csv":
        for path in markdown.write_csv(args.profile, output or outputs(args.profile) / "tables"):
            print(path)
    elif output is None:
        print(markdown.text(args.profile, args.format), end="")
    else:
        if args.format == "md" and output.is_file() and markdown.is_marked(output):
            markdown.write(args.profile, output)
        else:
            _workspace.write(output, markdown.text(args.profile, args.format))
        print(output)
    return 0


# softad data


def add_data(commands: Commands) -> None:
    """Add `softad data`."""
    command = add_command(commands, data, "List or prepare data sets.")
    actions = command.add_subparsers(dest="action", required=True, metavar="list | prepare")
    actions.add_parser("list", help="The data sets, and which are stored.")
    prepare = actions.add_parser("prepare", help="Get a data set, or store one of your own.")
    prepare.add_argument("name", metavar="NAME", help="a built-in set, or a name for your own")
    prepare.add_argument("--from-csv", metavar="FILE", help="a table: CSV or parquet")
    prepare.add_argument(
        "--target", default="", metavar="COLUMN", help="its classes (default: the last column)"
    )
    prepare.add_argument("--replace", action="store_true", help="write over a table of that name")


def data(args: argparse.Namespace) -> int:
    """List data sets, or prepare one."""
    from softadlib.data import sets

    if args.action == "list":
        for name, state, size in sets.listing():
            print(f"{name:14} {state:11} {size}")
        print(f"data root: {_workspace.data_root()}")
        return 0
    if args.target and not args.from_csv:
        raise UserError("--target names a column of --from-csv FILE; give both")
    print(sets.prepare(args.name, args.from_csv, args.target, replace=args.replace))
    print(sets.describe(args.name))
    return 0


# The command


ADD = (add_run, add_draw, add_train, add_show, add_report, add_data)
"""The commands, in the order in which --help lists them."""


def parser() -> Parser:
    """Return the parser of the command line."""
    root = Parser(
        prog="softad",
        description="Train, draw and report the experiments of params/.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"softadlib {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in ADD:
        add(commands)
    return root


def _stop(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` and schedulers send two at once
    raise SigTerm


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `softad` command; return the exit status."""
    command_line = parser()
    with contextlib.suppress(ModuleNotFoundError):
        import argcomplete

        argcomplete.autocomplete(command_line)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without θ shows \u03b8
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _stop)
    for name in ("SOFTAD_HOME", "SOFTAD_DATA"):
        if os.environ.get(name):  # kernels run in another folder
            os.environ[name] = os.path.abspath(os.environ[name])
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        args = command_line.parse_args(words)
        status: int = args.handler(args)
        sys.stdout.flush()
        return status
    except UserError as error:
        say(str(error))
        return 2
    except ModuleNotFoundError as error:
        extra = "cluster" if error.name == "distributed" else "workbook"
        say(f"{error.name} is not installed; run in a clone: pip install '.[{extra}]'")
        return 2
    except MemoryError as error:
        say(f"memory ran out ({str(error) or 'MemoryError'}); take fewer samples or --jobs")
        return 1
    except BrokenPipeError:  # the reader, such as `head`, has closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        say(f"{error.filename or 'a file'}: {error.strerror or error}")
        return 2
    except KeyboardInterrupt as stop:
        again = "the command without --fresh" if "--fresh" in words else "the same command"
        say(f"stopped; {again} resumes")
        return getattr(stop, "status", 130)


if __name__ == "__main__":
    raise SystemExit(main())
