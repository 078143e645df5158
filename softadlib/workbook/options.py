"""The options of the `softad` command: how each is given and read.

A command takes those that its function names as parameters. Imports are inside the functions, so that
`softad --help` does not wait for torch.
"""

import argparse
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from softadlib._validation import UserError

FORMATS = ("html", "md", "csv", "latex")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as those of the rest of the command are."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help lists what there is")


class Option:
    """How an option is given, such as "-j --jobs N", what is said of it, and how argparse reads it.

    Without flags it is given by its place.
    """

    def __init__(self, usage: str, help: str, **reading: Any):
        words = usage.split()
        self.flags = [word for word in words if word.startswith("-")]
        self.reading = {"help": help, **reading}
        if words[len(self.flags) :]:
            self.reading["metavar"] = words[-1]


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def add_command(commands: Commands, name: str, run: Callable[..., int]) -> None:
    """Add a command: its help is the docstring of `run`, its options are the parameters."""
    text = inspect.getdoc(run)
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run)
    for parameter in inspect.signature(run).parameters.values():
        option = OPTIONS[parameter.name]
        if option.flags:
            command.add_argument(*option.flags, dest=parameter.name, **option.reading)
        else:
            nargs = "?" if parameter.default is None else None
            command.add_argument(parameter.name, nargs=nargs, **option.reading)


# Values


def names(text: str) -> list[str]:
    """Read a name, or several with commas between them."""
    found = [name for name in text.split(",") if name]
    if not found:
        raise argparse.ArgumentTypeError("needs a name; leave it out for all")
    return found


def assignment(text: str) -> str:
    """Return NAME=VALUE unchanged; refuse a NAME alone, as in `-p NAME VALUE`."""
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} has no value; give -p {text}=VALUE")
    return text


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text}")
    return int(text)


def shard(text: str) -> tuple[int, int]:
    """Read i/N."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"must be i/N with 1 ≤ i ≤ N, such as 3/16, got {text!r}")
    return int(match[1]), int(match[2])


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # on Linux alone
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


LIST = {"type": names, "action": "extend"}
SWITCH = {"action": "store_true"}
OPTIONS = {
    "profile": Option(
        "PROFILE", "a folder under params/: smoke, quick, paper …; softad show lists them"
    ),
    "datasets": Option("--dataset D", "only this dataset (repeatable, or D1,D2)", **LIST),
    "methods": Option("--method M", "only this method (repeatable, or M1,M2)", **LIST),
    "changes": Option(
        "-p --parameter NAME=VALUE",
        "change one parameter of the profile, VALUE as YAML: -p grids.softad=0.1,0.2",
        type=assignment,
        action="append",
        default=[],
    ),
    "new_profile": Option("--as NAME", "keep the changes as profile NAME"),
    "dry_run": Option("--dry-run", "print what would be done, and do nothing", **SWITCH),
    "jobs": Option(
        "-j --jobs N", "processes (default: one per core)", type=positive, default=usable_cores()
    ),
    "scheduler": Option("--scheduler A", "a dask cluster: tcp://HOST:PORT, or a scheduler file"),
    "shard": Option(
        "--shard i/N", "train every N-th trial, from the i-th on", type=shard, default=(1, 1)
    ),
    "fresh": Option("--fresh", "delete earlier results first", **SWITCH),
    "parameters": Option("--parameters", "also list its parameters", **SWITCH),
    "form": Option("--format", "default: html", choices=FORMATS, default="html"),
    "output": Option(
        "--output PATH",
        "html, latex: the file; csv: the folder; md: a file, between its marks where it has some",
        type=Path,
    ),
    "name": Option("NAME", "a built-in set, or a name for your own"),
    "from_csv": Option("--from-csv FILE", "a table: CSV or parquet"),
    "target": Option("--target COLUMN", "its classes (default: the last column)", default=""),
    "replace": Option("--replace", "write over a table of that name", **SWITCH),
}
"""The options, by the names of the parameters that they are given to."""
