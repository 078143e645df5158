"""Options that several commands share, and what they mean."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softadlib._validation import UserError, choose, whole

if TYPE_CHECKING:
    from softadlib.training.executors.ray import RayCluster
    from softadlib.training.protocol import Protocol
    from softadlib.workbook.prepare import Selection, Work


def add_selection(command: argparse.ArgumentParser) -> None:
    """Add the options that say which part of a profile is meant."""
    command.add_argument(
        "--dataset", action="append", metavar="D", help="only this dataset (repeatable, or D1,D2)"
    )
    command.add_argument(
        "--method", action="append", metavar="M", help="only this method (repeatable, or M1,M2)"
    )
    command.add_argument(
        "-p",
        "--parameter",
        dest="parameters",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="change one parameter of the profile, VALUE as YAML; softad show PROFILE lists them",
    )


def add_execution(command: argparse.ArgumentParser) -> None:
    """Add the options that say where the work is done, and whether."""
    command.add_argument(
        "--as",
        dest="new_profile",
        metavar="NAME",
        help="keep the changed parameters as profile NAME, with results of its own",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="print what would be done, and do nothing"
    )
    command.add_argument(
        "-j",
        "--jobs",
        type=int,
        metavar="N",
        help="processes, one thread each (default: one per core on a CPU, else one)",
    )
    command.add_argument("--engine", default="joblib", help="joblib (this machine) or ray")
    command.add_argument("--address", metavar="A", help="a running Ray cluster: auto, HOST:PORT")
    command.add_argument("--cpus", type=float, metavar="C", help="CPUs per Ray task (default 1)")
    command.add_argument(
        "--gpus", type=float, metavar="G", help="GPUs per Ray task, as 0.25 (default 1 if any)"
    )
    command.add_argument(
        "--checkpoint-dir",
        type=Path,
        metavar="DIR",
        help="folder that all Ray nodes see; a run whose node died resumes from there",
    )


def split_names(values: Sequence[str] | None) -> list[str] | None:
    """Return the names of a repeatable option whose values may be lists with commas.

    Raises UserError where it is given and names nothing.
    """
    if values is None:
        return None
    names = [name for value in values for name in value.split(",") if name]
    if not names:
        raise UserError("--dataset and --method need a name; leave them out for all")
    return names


def prepare_work(
    args: argparse.Namespace, cluster: "RayCluster | None" = None, *, fresh: bool = False
) -> "tuple[Work, int]":
    """Return the checked work of a command line, and its number of processes. Raises UserError.

    The profile that `--as` names is written once everything is known to be in order.
    """
    from softadlib.workbook.prepare import prepare

    work = prepare(selection(args), cluster, fresh=fresh, read_only=args.dry_run)
    processes = jobs(args.jobs, work.protocols)
    if args.new_profile is not None and not args.dry_run:
        work = prepare(selection(args, write=True), cluster, fresh=fresh)
    return work, processes


def selection(args: argparse.Namespace, *, write: bool = False) -> "Selection":
    """Return the selection that a command line asks for; `write` writes the profile of `--as`."""
    from softadlib.workbook.prepare import Selection, derive_profile

    asked = Selection(
        args.profile,
        split_names(args.dataset),
        split_names(args.method),
        overrides(args.parameters),
        getattr(args, "shard", None),
    )
    name = getattr(args, "new_profile", None)
    if name is None:
        return asked
    return derive_profile(asked, name, write=write)


def overrides(pairs: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Read every `-p NAME VALUE`. Raises UserError for a value that is not YAML."""
    import yaml

    from softadlib._yaml import parse_yaml

    values = {}
    for name, text in pairs:
        try:
            values[name] = parse_yaml(text)
        except yaml.YAMLError:
            raise UserError(f"parameter {name}: {text!r} is not YAML") from None
    return values


def jobs(value: int | None, protocols: Mapping[str, "Protocol"]) -> int:
    """Return the number asked for; else one per core on a CPU, and one where a GPU is shared."""
    from softadlib.training.device import pick_device

    if value is None:
        devices = {pick_device(p.device).type for p in protocols.values()}
        return local_jobs(None) if devices == {"cpu"} else 1
    return local_jobs(value)


def refuse_training_options(args: argparse.Namespace) -> None:
    """Raise UserError for options that `softad run figures` has no use for."""
    options = {
        "dataset": "--dataset",
        "method": "--method",
        "parameters": "-p",
        "new_profile": "--as",
    }
    for name, option in options.items():
        if getattr(args, name):
            raise UserError(f"softad run figures trains nothing; leave {option} out")
    if args.engine != "joblib":
        raise UserError("softad run figures draws on this machine; leave --engine out")
    cluster(args)  # refuses the options of a cluster


def local_jobs(value: int | None) -> int:
    """Return the number asked for, else one per core that this process may use.

    Raises UserError for a number below 1.
    """
    if value is None:
        usable = getattr(os, "sched_getaffinity", None)  # Linux alone has it
        return len(usable(0)) if usable else os.cpu_count() or 1
    return whole("--jobs", value, 1)


def cluster(args: argparse.Namespace) -> "RayCluster | None":
    """Return the Ray cluster that is asked for; None for this machine. Raises UserError."""
    choose("engine", args.engine, ("joblib", "ray"))
    if args.engine == "joblib":
        for option in ("address", "cpus", "gpus", "checkpoint-dir"):
            if getattr(args, option.replace("-", "_")) is not None:
                raise UserError(f"--{option} is for a cluster; add --engine ray")
        return None
    if args.jobs is not None:
        raise UserError(
            "--jobs is for this machine; Ray takes what its nodes have, --cpus for a task"
        )
    if getattr(args, "shard", None) is not None:
        raise UserError(
            "--shard is for machines that know nothing of each other; not with --engine ray"
        )
    from softadlib.training.executors import shards
    from softadlib.training.executors.ray import RayCluster

    asked = selection(args)  # bad input is refused before anything is started
    shards.split_profile(asked.profile, asked.datasets, asked.methods, asked.overrides or {}, 1)
    return RayCluster(args.address, args.cpus, args.gpus, args.checkpoint_dir)
