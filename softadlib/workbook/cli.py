"""The `softad` command.

Exit status: 0 done, 1 a notebook failed or memory ran out, 2 bad input (one line on stderr), 130
stopped by Ctrl-C, 141 by a closed pipe, 143 by SIGTERM. Imports are inside the functions, so that
`softad --help` does not wait for torch.
"""

import io
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, BadParameter, Exit, Option, Typer
from typer.exceptions import TyperException
from typer.main import get_command

from softadlib import __version__, _files
from softadlib._validation import MissingData, UserError, choose, counted, whole

if TYPE_CHECKING:
    from softadlib.workbook.pages.notebooks import Outcome, Page
    from softadlib.workbook.studies.work import Work

EXAMPLES = """Examples:

\b
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


def say(line: str) -> None:
    """Print a line for the person, beside the results on stdout."""
    print(f"softad: {line}", file=sys.stderr, flush=True)


app = Typer(
    help="Train, draw and report the experiments of params/.",
    epilog=EXAMPLES,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = Typer(help="List or prepare data sets.", rich_markup_mode=None)
app.add_typer(data_app, name="data")


def show_version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        print(f"softadlib {__version__}")
        raise Exit


@app.callback()
def softad(
    version: Annotated[
        bool,
        Option("--version", callback=show_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    """Take the options that are of no command."""


# Values of options


def names(given: list[str] | None) -> list[str] | None:
    """Return names that were given one by one or with commas between them; None for all."""
    if not given:
        return None
    found = [name for text in given for name in text.split(",") if name]
    if not found:
        raise BadParameter("needs a name; leave it out for all")
    return found


def assignments(given: list[str] | None) -> list[str] | None:
    """Return NAME=VALUE unchanged; refuse a NAME alone, as in `-p NAME VALUE`."""
    for text in given or ():
        if "=" not in text:
            raise BadParameter(f"{text!r} has no value; give -p {text}=VALUE")
    return given


def at_least_one(jobs: int) -> int:
    """Return a number of processes; refuse 0."""
    return whole("--jobs", jobs, 1)


def shard_of(text: str) -> tuple[int, int]:
    """Read i/N."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"--shard must be i/N with 1 ≤ i ≤ N, such as 3/16, got {text!r}")
    return int(match[1]), int(match[2])


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # on Linux alone
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


CORES = usable_cores()


def profiles_beginning(incomplete: str) -> list[str]:
    """Complete the name of a profile."""
    folders = _files.params_dir().glob(f"{incomplete}*/")
    return sorted(path.name for path in folders if path.name[0] != ".")


def datasets_beginning(incomplete: str) -> list[str]:
    """Complete the name of a data set that some profile has."""
    return sorted({path.stem for path in _files.params_dir().glob(f"*/{incomplete}*.yaml")})


# Options of several commands

PROFILE = Argument(
    metavar="PROFILE",
    help="a folder under params/: smoke, quick, paper …; softad show lists them",
    autocompletion=profiles_beginning,
)
ProfileName = Annotated[str, PROFILE]
Datasets = Annotated[
    list[str] | None,
    Option(
        "--dataset",
        metavar="D",
        help="only this dataset (repeatable, or D1,D2)",
        callback=names,
        autocompletion=datasets_beginning,
    ),
]
Methods = Annotated[
    list[str] | None,
    Option("--method", metavar="M", help="only this method (repeatable, or M1,M2)", callback=names),
]
Changes = Annotated[
    list[str] | None,
    Option(
        "-p",
        "--parameter",
        metavar="NAME=VALUE",
        help="change one parameter of the profile, VALUE as YAML: -p grids.softad=0.1,0.2; "
        "softad show PROFILE --parameters lists them",
        callback=assignments,
    ),
]
NewProfile = Annotated[
    str | None,
    Option("--as", "--save-as", metavar="NAME", help="keep the changes as profile NAME"),
]
DryRun = Annotated[bool, Option("--dry-run", help="print what would be done, and do nothing")]
Jobs = Annotated[int, Option("-j", "--jobs", metavar="N", help="processes", callback=at_least_one)]


def to_train(
    profile: str,
    datasets: list[str] | None,
    methods: list[str] | None,
    changes: list[str] | None,
    new_profile: str | None,
    shard: tuple[int, int] = (1, 1),
    fresh: bool = False,
) -> "Work":
    """Return what is asked for, checked, and print what to know before it starts."""
    from softadlib.workbook.studies import work
    from softadlib.workbook.studies.changes import parse

    planned = work.plan_work(
        profile,
        datasets,
        methods,
        parse(changes or ()),
        new_profile=new_profile,
        shard=shard,
        fresh=fresh,
    )
    checked = work.check_work(planned)
    for line in work.notes(checked) + work.doubts(checked):
        say(f"note: {line}")
    return checked


# softad run


@app.command()
def run(
    profile: ProfileName,
    datasets: Datasets = None,
    methods: Methods = None,
    changes: Changes = None,
    new_profile: NewProfile = None,
    dry_run: DryRun = False,
    jobs: Jobs = CORES,
) -> int:
    """Train what is left, in notebooks; draw the missing pages."""
    from softadlib.workbook.pages import notebooks, show

    started = time.monotonic()
    work = to_train(profile, datasets, methods, changes, new_profile)
    if dry_run:
        print(show.progress(work))
        if new_profile:  # it has the pages of the profile that it extends
            planned = notebooks.planned_results(work.studies)
            pages = notebooks.pages_of_profile(profile, planned)
            if datasets:
                pages = [page for page in pages if "dataset" in page.parameters]
        else:
            pages = notebooks.missing_pages(profile, datasets, planned=work.studies)
        print_names(pages)
        return 0
    work.write()
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
    from softadlib.workbook.pages.notebooks import FIGURES
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
    say(f"done: {counted(done, 'notebook')} in {seconds:.0f} s, {outputs(profile)}")
    if profile != FIGURES:
        say(f"next: softad report {profile} makes one page of them")
    return 0


# softad draw


@app.command()
def draw(
    profile: Annotated[str | None, PROFILE] = None,
    datasets: Datasets = None,
    dry_run: DryRun = False,
    jobs: Jobs = CORES,
) -> int:
    """Draw the pages of a profile, or those that read none."""
    from softadlib.workbook.pages import notebooks
    from softadlib.workbook.studies import params

    started = time.monotonic()
    if profile is None:
        if datasets:
            raise UserError("--dataset is of a profile; give softad draw PROFILE --dataset D")
        pages = notebooks.pages_of_no_profile()
    else:
        stored = notebooks.stored_results(profile)
        if not stored:
            choose("profile", profile, params.profile_names())
            first = f"softad train {profile}"
            raise MissingData(f"nothing is finished in profile {profile!r}; first: {first}")
        for name in datasets or ():
            there = dict.fromkeys(result.dataset for result in stored)
            choose(f"dataset with results in profile {profile}", name, there)
        pages = notebooks.pages_of_profile(profile, stored, datasets)
        if dry_run:
            for name, lack in notebooks.lacking_pages(profile, stored).items():
                print(f"without {name}: {lack}")
    if dry_run:
        print_names(pages)
        return 0
    return finish(execute(pages, jobs), started, profile or notebooks.FIGURES)


# softad train


@app.command()
def train(
    profile: ProfileName,
    datasets: Datasets = None,
    methods: Methods = None,
    changes: Changes = None,
    new_profile: NewProfile = None,
    scheduler: Annotated[
        str | None,
        Option(metavar="A", help="a dask cluster: tcp://HOST:PORT, or a scheduler file"),
    ] = None,
    dry_run: DryRun = False,
    jobs: Jobs = CORES,
    shard: Annotated[
        str, Option(metavar="i/N", help="train every N-th trial, from the i-th on")
    ] = "1/1",
    fresh: Annotated[bool, Option("--fresh", help="delete earlier results first")] = False,
) -> int:
    """Train what is left, without notebooks; the files are the same."""
    from softadlib.workbook.pages import show
    from softadlib.workbook.studies.parquet import outputs

    started = time.monotonic()
    work = to_train(profile, datasets, methods, changes, new_profile, shard_of(shard), fresh)
    if dry_run:
        print(show.progress(work))
        return 0
    work.write()
    train_studies(work, jobs, scheduler)
    if shard != "1/1":
        together = "run the same command without --shard to join those in one outputs/"
        say(f"shard {shard} is trained; when all shards are trained, {together}")
    seconds = time.monotonic() - started
    folder = outputs(work.profile)
    trained = counted(len(work.studies), "dataset × method", "datasets × methods")
    say(f"done: {trained} in {seconds:.0f} s, {folder}")
    return 0


def train_studies(work: "Work", jobs: int, scheduler: str | None) -> None:
    """Train the studies one after another, each on all processes or on a cluster."""
    from softadlib.workbook.studies import selection
    from softadlib.workbook.studies.cluster import cluster
    from softadlib.workbook.studies.run_study import run_study, start_anew

    with cluster(scheduler) as executor:
        # All at once: the same command without --fresh then goes on wherever this one is stopped.
        studies = [start_anew(study) if study.fresh else study for study in work.studies]
        for study in studies:
            rows = run_study(study, jobs=jobs, executor=executor)
            rows_at_end = selection.final(rows)
            has_diverged = selection.diverged(rows_at_end)
            if has_diverged.any():
                runs = f"{has_diverged.sum()} of {counted(len(rows_at_end), 'run')} diverged"
                say(f"note: {study.name}: {runs}; a smaller lr may help")


# softad show


@app.command()
def show(
    profile: Annotated[str | None, PROFILE] = None,
    datasets: Datasets = None,
    methods: Methods = None,
    changes: Changes = None,
    parameters: Annotated[bool, Option("--parameters", help="also list its parameters")] = False,
) -> int:
    """List profiles; of one, its runs and what is done."""
    from softadlib.workbook.pages import show as overview
    from softadlib.workbook.studies import work
    from softadlib.workbook.studies.changes import parse

    if profile is None:
        if datasets or methods or changes or parameters:
            raise UserError("these options are of a profile; give softad show PROFILE with them")
        print(overview.profiles())
        return 0
    planned = work.plan_work(profile, datasets, methods, parse(changes or ()))
    for line in work.notes(planned):
        say(f"note: {line}")
    print(overview.progress(planned))
    if parameters:
        print(f"\n{overview.parameters(planned, methods)}")
    return 0


# softad report


@app.command()
def report(
    profile: ProfileName,
    form: Annotated[Literal["html", "md", "csv", "latex"], Option("--format")] = "html",
    output: Annotated[
        Path | None,
        Option(
            metavar="PATH",
            help="html, latex: the file; csv: the folder; md: a file, between its marks where it has some",
        ),
    ] = None,
) -> int:
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


@data_app.command("list")
def list_data() -> int:
    """List the data sets, and which are stored."""
    from softadlib.workbook.data import prepare as data

    for name, state, size in data.listing():
        print(f"{name:14} {state:11} {size}")
    print(f"data root: {_files.data_root()}")
    return 0


@data_app.command("prepare")
def prepare_data(
    name: Annotated[str, Argument(metavar="NAME", help="a built-in set, or a name for your own")],
    from_csv: Annotated[str | None, Option(metavar="FILE", help="a table: CSV or parquet")] = None,
    target: Annotated[
        str, Option(metavar="COLUMN", help="its classes (default: the last column)")
    ] = "",
    replace: Annotated[bool, Option("--replace", help="write over a table of that name")] = False,
) -> int:
    """Get a data set, or store one of your own."""
    from softadlib.workbook.data import prepare as data

    if target and not from_csv:
        raise UserError("--target names a column of --from-csv FILE; give both")
    print(data.prepare(name, from_csv, target, replace=replace))
    print(data.describe(name))
    return 0


# The command


def _stop(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` and schedulers send two at once
    raise SigTerm


def usage_error(error: TyperException) -> str:
    """Return what is wrong with a command line, and which command says what there is."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "softad"
    problem = error.format_message().removesuffix(".")
    end = " " if problem.endswith("?") else "; "
    return f"{problem}{end}{command} --help lists what there is"


def execute_command(arguments: list[str]) -> int:
    """Execute a command line; `app()` would turn Ctrl-C and a closed pipe into other ends."""
    command = get_command(app)
    try:
        with command.make_context("softad", arguments) as context:
            status: int = command.invoke(context)
    except Exit as end:  # of --help and --version
        return end.exit_code
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `softad` command; return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, _stop)
    for stream in (sys.stdout, sys.stderr):  # a terminal may not know θ
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    for name in ("SOFTAD_HOME", "SOFTAD_DATA"):
        if os.environ.get(name):  # kernels run in another folder
            os.environ[name] = os.path.abspath(os.environ[name])
    try:
        if "_SOFTAD_COMPLETE" in os.environ:  # a shell asks for completions
            app(prog_name="softad")
        status = execute_command(arguments)
        sys.stdout.flush()
        return status
    except TyperException as error:
        say(usage_error(error))
        return 2
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
        again = "the command without --fresh" if "--fresh" in arguments else "the same command"
        say(f"stopped; {again} resumes")
        return getattr(stop, "status", 130)
