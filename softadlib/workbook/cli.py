"""The `softad` command.

Exit status: 0 done, 1 a notebook failed or memory ran out, 2 bad input (one line on stderr), 130
stopped by Ctrl-C, 141 by a closed pipe, 143 by SIGTERM. Imports are inside the functions, so that
`softad --help` does not wait for torch.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from softadlib import __version__, _files
from softadlib._validation import MissingData, UserError, choose
from softadlib.workbook.options import Parser, add_command

if TYPE_CHECKING:
    from softadlib.workbook.pages.notebooks import Outcome, Page
    from softadlib.workbook.studies.work import Work

EXAMPLES = """examples:
  softad run quick                     train and draw profile quick, minutes
  softad run quick --dataset spiral --method softad
  softad draw quick                    draw its pages again, from what is stored
  softad draw                          draw the pages that read no profile
  softad report quick                  write outputs/quick/index.html
  softad show quick                    say what is done and what is left
  softad train quick -p lr=0.05 --as slower
"""


class SigTerm(KeyboardInterrupt):
    """SIGTERM, as a scheduler sends it before it kills: ends a command as Ctrl-C does."""

    status = 143


Names: TypeAlias = list[str] | None
"""Names of datasets or methods; None for all."""


def say(line: str) -> None:
    """Print a line for the person, beside the results on stdout."""
    print(f"softad: {line}", file=sys.stderr, flush=True)


def prepare(
    profile: str, datasets: Names, methods: Names, changes: list[str], **how: Any
) -> "Work":
    """Check the arguments of a command, and print what to know before it starts."""
    from softadlib.workbook.studies import work
    from softadlib.workbook.studies.changes import parse

    prepared = work.prepare(profile, datasets, methods, parse(changes), **how)
    doubts = [] if how.get("stored") else work.doubts(prepared)
    for line in work.notes(prepared) + doubts:
        say(f"note: {line}")
    return prepared


# softad run


def run(
    profile: str,
    datasets: Names,
    methods: Names,
    changes: list[str],
    new_profile: str | None,
    dry_run: bool,
    jobs: int,
) -> int:
    """Train what is left of a profile in notebooks, then draw the pages that are missing."""
    from softadlib.workbook.pages import notebooks, show

    started = time.monotonic()
    how = {"new_profile": new_profile, "write": not dry_run}
    work = prepare(profile, datasets, methods, changes, **how)
    if dry_run:
        print(show.progress(work))
        if new_profile:  # it has the pages of the profile that it extends
            pages = notebooks.pages_of_profile(profile, list(work.protocols))
            if datasets:
                pages = [page for page in pages if "dataset" in page.parameters]
        else:
            pages = notebooks.missing_pages(profile, datasets, planned=work.protocols)
        print_names(pages)
        return 0
    outcomes = execute(notebooks.training_pages(work, jobs), jobs)
    outcomes += execute(notebooks.missing_pages(work.profile, datasets), jobs)
    return finish(outcomes, started, work.profile)


def print_names(pages: "Sequence[Page]") -> None:
    """Print which notebooks would be drawn."""
    print("notebooks to draw:", ", ".join(page.name for page in pages) or "none")


def execute(pages: "Sequence[Page]", jobs: int) -> "list[Outcome]":
    """Execute pages and show how far they are; a failure is a line."""
    from tqdm import tqdm

    from softadlib.workbook.pages import notebooks

    outcomes = []
    interval = 0.5 if sys.stderr.isatty() else 60
    running = notebooks.execute(pages, jobs)
    try:
        with tqdm(total=len(pages), unit="page", mininterval=interval, disable=not pages) as bar:
            for outcome in running:
                outcomes.append(outcome)
                if outcome.failed:
                    bar.clear()
                    say(outcome.error)
                bar.update()
    except KeyboardInterrupt as stop:
        say("stopped; the same command resumes")
        # Kernels end with their parent; the threads that wait for them would go on.
        os._exit(getattr(stop, "status", 130))
    return outcomes


def finish(outcomes: "Sequence[Outcome]", started: float, profile: str) -> int:
    """Say how the execution of pages ended; return the exit status."""
    from softadlib.workbook.studies.parquet import outputs

    lacking = [outcome.page for outcome in outcomes if outcome.lacks_results]
    if lacking:
        names = ", ".join(page.name for page in lacking)
        reasons = lacking[0].reason.parent / "*.not-drawn.txt"
        say(f"not drawn, results that they need are not there: {names}; why: {reasons}")
    failed = sum(outcome.failed for outcome in outcomes)
    if failed:
        say(f"{failed} of {len(outcomes)} notebooks failed; the same command tries them again")
        return 1
    seconds = time.monotonic() - started
    done = len(outcomes) - len(lacking)
    say(f"done: {done} notebooks in {seconds:.0f} s, {outputs(profile)}")
    return 0


# softad draw


def draw(profile: str | None = None, *, datasets: Names, dry_run: bool, jobs: int) -> int:
    """Draw a profile's pages; without a profile the pages that read none."""
    from softadlib.workbook.pages import notebooks

    started = time.monotonic()
    if profile is None:
        if datasets:
            raise UserError("--dataset is of a profile; give softad draw PROFILE --dataset D")
        pages = notebooks.pages_of_no_profile()
    else:
        stored = notebooks.stored_datasets(profile)
        if not stored:
            first = f"softad train {profile}"
            raise MissingData(f"nothing is finished in profile {profile!r}; first: {first}")
        for name in datasets or ():
            choose(f"dataset with results in profile {profile}", name, stored)
        pages = notebooks.pages_of_profile(profile, datasets or stored)
    if dry_run:
        print_names(pages)
        return 0
    return finish(execute(pages, jobs), started, profile or notebooks.FIGURES)


# softad train


def train(
    profile: str,
    datasets: Names,
    methods: Names,
    changes: list[str],
    new_profile: str | None,
    scheduler: str | None,
    dry_run: bool,
    jobs: int,
    shard: tuple[int, int],
    fresh: bool,
) -> int:
    """Train what is left of a profile, without notebooks; it writes the same files."""
    from softadlib.workbook.pages import show
    from softadlib.workbook.studies.parquet import outputs

    started = time.monotonic()
    how = {"new_profile": new_profile, "shard": shard, "fresh": fresh, "write": not dry_run}
    work = prepare(profile, datasets, methods, changes, **how)
    if dry_run:
        print(show.progress(work))
        return 0
    train_studies(work, jobs, scheduler)
    if shard != (1, 1):
        together = "run the same command without --shard to join those in one outputs/"
        say(f"shard {shard[0]}/{shard[1]} is trained; when all shards are trained, {together}")
    seconds = time.monotonic() - started
    folder = outputs(work.profile)
    say(f"done: {len(work.studies)} datasets × methods in {seconds:.0f} s, {folder}")
    return 0


def train_studies(work: "Work", jobs: int, scheduler: str | None) -> None:
    """Train the studies one after another, each on all processes or on a cluster."""
    from softadlib.workbook.studies.cluster import cluster
    from softadlib.workbook.studies.run_study import run_study, start_anew

    with cluster(scheduler) as executor:
        # All at once: the same command without --fresh then goes on wherever this one is stopped.
        studies = [start_anew(study) if study.fresh else study for study in work.studies]
        for study in studies:
            run_study(study, jobs=jobs, executor=executor)


# softad show


def show(
    profile: str | None = None,
    *,
    datasets: Names,
    methods: Names,
    changes: list[str],
    parameters: bool,
) -> int:
    """List profiles; of one, its runs and what is done."""
    from softadlib.workbook.pages import show as overview

    if profile is None:
        if datasets or methods or changes or parameters:
            raise UserError("these options are of a profile; give softad show PROFILE with them")
        print(overview.profiles())
        return 0
    work = prepare(profile, datasets, methods, changes, stored=True)
    print(overview.progress(work))
    if parameters:
        print(f"\n{overview.parameters(work, methods)}")
    return 0


# softad report


def report(profile: str, form: str, output: Path | None) -> int:
    """Write a profile's results as a page or as tables."""
    from softadlib.workbook.analysis import report_tables
    from softadlib.workbook.pages.notebooks import missing_pages
    from softadlib.workbook.pages.report import build
    from softadlib.workbook.studies.parquet import outputs

    if form == "html":
        print(build(profile, output))
        if missing := [page.name for page in missing_pages(profile)]:
            say(
                f"note: not drawn from the results as they are now: {', '.join(missing)}; "
                f"softad draw {profile} draws them"
            )
        return 0
    if form == "csv":
        for path in report_tables.write_csv(profile, output or outputs(profile) / "tables"):
            print(path)
        return 0
    if output is None:
        print(report_tables.text(profile, form), end="")
        return 0
    if form == "md" and output.is_file() and report_tables.is_marked(output):
        report_tables.write(profile, output)
    else:
        _files.write(output, report_tables.text(profile, form))
    print(output)
    return 0


# softad data


def list_data() -> int:
    """List the data sets, and which are stored."""
    from softadlib.workbook.data import prepare as data

    for name, state, size in data.listing():
        print(f"{name:14} {state:11} {size}")
    print(f"data root: {_files.data_root()}")
    return 0


def prepare_data(name: str, from_csv: str | None, target: str, replace: bool) -> int:
    """Get a data set, or store one of your own."""
    from softadlib.workbook.data import prepare as data

    if target and not from_csv:
        raise UserError("--target names a column of --from-csv FILE; give both")
    print(data.prepare(name, from_csv, target, replace=replace))
    print(data.describe(name))
    return 0


# The command


def parser() -> Parser:
    """Return the parser of the command line."""
    root = Parser(
        prog="softad",
        description="Train, draw and report the experiments of params/.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"softadlib {__version__}")
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    for command in (run, draw, train, show, report):
        add_command(commands, command.__name__, command)
    text = "List or prepare data sets."
    data = commands.add_parser("data", help=text, description=text)
    actions = data.add_subparsers(required=True, metavar="list | prepare")
    add_command(actions, "list", list_data)
    add_command(actions, "prepare", prepare_data)
    return root


def _stop(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` and schedulers send two at once
    raise SigTerm


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `softad` command; return the exit status."""
    command_line = parser()
    signal.signal(signal.SIGTERM, _stop)
    for name in ("SOFTAD_HOME", "SOFTAD_DATA"):
        if os.environ.get(name):  # kernels run in another folder
            os.environ[name] = os.path.abspath(os.environ[name])
    given: dict[str, Any] = {}
    try:
        given = vars(command_line.parse_args(argv))
        handler = given.pop("run")
        status: int = handler(**given)
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
        again = "the command without --fresh" if given.get("fresh") else "the same command"
        say(f"stopped; {again} resumes")
        return getattr(stop, "status", 130)
