# PYTHON_ARGCOMPLETE_OK
"""The `softad` command.

Exit status: 0 done, 1 a notebook, a cluster's training or a device's check failed or memory ran out,
2 bad input (one line on stderr), 130 stopped by Ctrl-C, 141 by a closed pipe, 143 by SIGTERM.
"""

import argparse
import contextlib
import gc
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence

from softadlib import __version__
from softadlib._validation import UserError
from softadlib.training.executors import processes
from softadlib.workbook import cli_options, commands

EXAMPLES = """examples:
  softad run quick                     train and draw profile quick, minutes
  softad run quick --dataset spiral --method softad
  softad run figures                   draw the notebooks that belong to no profile
  softad report quick                  write outputs/quick/index.html
  softad show quick                    say what is done and how long the rest takes
  softad train quick -p lr 0.05 --as slower
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="softad",
        description="Train, draw and report the experiments of params/.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"softadlib {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, text: str, run: Callable[[argparse.Namespace], int], profile: str = "PROFILE"
    ) -> argparse.ArgumentParser:
        command = subparsers.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        if profile:
            words = "a folder under params/: smoke, quick, paper …; softad show lists them"
            nargs = "?" if profile == "[PROFILE]" else None
            command.add_argument("profile", metavar="PROFILE", nargs=nargs, help=words)
        return command

    _add_work(add)
    _add_results(add)
    _add_machine(add)
    return parser


def _add_work(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands that train or plan to."""
    command = add("run", "Execute the notebooks of a profile: train, then draw.", commands.run)
    cli_options.add_selection(command)
    cli_options.add_execution(command)
    command.add_argument(
        "--draw-only", action="store_true", help="train nothing; draw what stored results allow"
    )
    command.add_argument(
        "--timeout", type=int, metavar="S", help="stop a notebook whose cell takes over S seconds"
    )
    command = add(
        "train", "Train a profile without notebooks; it writes the same tables.", commands.train
    )
    cli_options.add_selection(command)
    cli_options.add_execution(command)
    command.add_argument("--shard", metavar="i/N", help="train part i of N, of a split by cost")
    command.add_argument("--fresh", action="store_true", help="forget earlier results first")
    command.add_argument(
        "--losses",
        action="store_true",
        help="also store the losses of the selected runs' samples where they are missing: trains "
        "those runs again",
    )
    command = add(
        "slurm", "Print a Slurm array script that trains a profile in shards.", commands.slurm
    )
    cli_options.add_selection(command)
    command.add_argument("--shards", type=int, required=True, metavar="N", help="number of jobs")
    command.add_argument("-j", "--jobs", type=int, metavar="N", help="processes per job")
    command = add(
        "show",
        "List profiles; of one, its runs, what is done, its parameters.",
        commands.show,
        "[PROFILE]",
    )
    cli_options.add_selection(command)
    command.add_argument("-j", "--jobs", type=int, metavar="N", help="processes to plan with")
    command = add(
        "audit", "Train the controls that the audit compares results with.", commands.audit
    )
    command.add_argument("--dataset", action="append", metavar="D", help="only this one")
    command.add_argument("-j", "--jobs", type=int, metavar="N", help="processes (default: cores)")


def _add_results(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands that read finished results."""
    command = add("report", "Write a profile's results as a page or as tables.", commands.report)
    command.add_argument("--format", default="html", help="html (default), md or csv")
    command.add_argument(
        "--output",
        metavar="PATH",
        help="md: put the tables between the marks in this file (default: print them); "
        "csv: folder (default: outputs/PROFILE/tables)",
    )
    command = add(
        "export", "Send finished results to a tracking server.", commands.export, profile=""
    )
    command.add_argument("profile", metavar="PROFILE", help="a folder under outputs/")
    command.add_argument("--to", default="mlflow", help="mlflow (default)")
    command.add_argument(
        "--uri",
        metavar="URI",
        help="sqlite:///FILE, http://HOST:PORT (default: $MLFLOW_TRACKING_URI, or outputs/mlflow.db)",
    )


def _add_machine(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands about data and speed."""
    data = add("data", "List or prepare image sets.", commands.data, profile="")
    actions = data.add_subparsers(dest="action", required=True, metavar="list | prepare")
    actions.add_parser("list", help="The image sets, and which are stored.")
    prepare = actions.add_parser("prepare", help="Write a set as one file that needs no internet.")
    prepare.add_argument("name", metavar="NAME", help="a built-in set, or a name for your own")
    prepare.add_argument(
        "--from-folder",
        metavar="DIR",
        help="images of your own: DIR/train/<class>/*, DIR/test/<class>/*",
    )
    command = add(
        "bench", "Time the published loop against ours on this machine.", commands.bench, ""
    )
    command.add_argument("--case", action="append", metavar="C", help="only this case (repeatable)")
    command.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    command.add_argument(
        "--rounds",
        type=int,
        default=5,
        metavar="N",
        help="at most N rounds, the median counts (default 5)",
    )
    command.add_argument("--json", metavar="FILE", help="write the figures there too")
    command = add(
        "check-device", "Check that a device computes what the CPU does.", commands.check_device, ""
    )
    command.add_argument(
        "--device", default="best", help="cpu or cuda (default: cuda if it is there)"
    )
    command.add_argument(
        "--budget", type=float, default=300, metavar="S", help="begin nothing after S seconds"
    )
    command.add_argument("--json", metavar="FILE", help="write the report there too")


@contextlib.contextmanager
def _fewer_collections() -> Iterator[None]:
    """Collect garbage less often: what imports make stays, and each collection looks through all of it."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _stopped(stop: KeyboardInterrupt) -> int:
    commands.say("stopped; the same command resumes")
    return 143 if isinstance(stop, processes.SigTerm) else 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `softad` command; return the exit status."""
    parser = _parser()
    with contextlib.suppress(ModuleNotFoundError):
        import argcomplete  # type: ignore[import-not-found,unused-ignore]

        argcomplete.autocomplete(parser)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without θ shows \u03b8
            stream.reconfigure(errors="backslashreplace")
    args = parser.parse_args(argv)
    processes.keep_freed_memory()
    try:
        with (
            processes.stopped_by_signals(_stopped),
            warnings.catch_warnings(),
            _fewer_collections(),
        ):
            # loky warns of a worker that it has replaced
            warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
            status: int = args.run(args)
            sys.stdout.flush()
            return status
    except UserError as error:
        commands.say(str(error))
        return 2
    except ModuleNotFoundError as error:
        commands.say(
            f"{error.name} is not installed; install the workbook with: pip install 'softadlib[workbook]'"
        )
        return 2
    except MemoryError as error:
        commands.say(
            f"memory ran out ({str(error) or 'MemoryError'}); take fewer samples or --jobs"
        )
        return 1
    except BrokenPipeError:  # the reader, such as `head`, has closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        commands.say(f"{error.filename or 'a file'}: {error.strerror or error}")
        return 2
    except KeyboardInterrupt as stop:
        return _stopped(stop)


if __name__ == "__main__":
    raise SystemExit(main())
