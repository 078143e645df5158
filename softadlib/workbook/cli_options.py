"""What `softad run` and `softad train` share: which runs, and who does them."""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from softadlib._validation import UserError, choose

if TYPE_CHECKING:
    from softadlib.training.executors.ray import RayCluster

    pass


def sweep(sub: argparse.ArgumentParser) -> None:
    """Add the options."""
    sub.add_argument(
        "--dataset", action="append", metavar="D", help="this dataset only (repeatable)"
    )
    sub.add_argument("--method", action="append", metavar="M", help="this method only (repeatable)")
    sub.add_argument(
        "-p",
        dest="parameters",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="override one parameter of params/, VALUE as YAML",
    )
    sub.add_argument(
        "-j",
        "--jobs",
        type=int,
        metavar="N",
        help="processes, one thread each (default: one per core on a CPU, else one)",
    )
    sub.add_argument(
        "--shard", metavar="i/N", help="train part i of N, for a call without to put together"
    )
    sub.add_argument("--engine", default="joblib", help="joblib (this machine) or ray")
    sub.add_argument("--address", metavar="A", help="of a running Ray cluster: auto, HOST:PORT")
    sub.add_argument("--cpus", type=float, metavar="C", help="per task of Ray's (default 1)")
    sub.add_argument(
        "--gpus", type=float, metavar="G", help="per task of Ray's, as 0.25 (default 1 if any)"
    )


def overrides(pairs: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Of `-p NAME VALUE` each; UserError for a value that is not YAML."""
    import yaml

    values = {}
    for name, text in pairs:
        try:
            values[name] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise UserError(f"parameter {name}: {text!r} is not YAML") from None
    return values


def jobs(value: int | None, protocols: Mapping) -> int:
    """As asked; else one per core where the CPU trains, and one where the processes would share a GPU."""
    from softadlib.training.device import pick_device

    if value is None:
        devices = {pick_device(p.device).type for p in protocols.values()}
        return (os.cpu_count() or 1) if devices == {"cpu"} else 1
    if value < 1:
        raise UserError(f"--jobs must be at least 1, got {value}")
    return value


def array_script(args: argparse.Namespace) -> str:
    """What `--emit-slurm` prints."""
    from softadlib.training.executors import slurm

    if args.jobs is not None and args.jobs < 1:
        raise UserError(f"--jobs must be at least 1, got {args.jobs}")
    if args.shard is not None or args.engine != "joblib":
        raise UserError(
            "--emit-slurm prints a script of its own shards; leave --shard, --engine out"
        )
    return slurm.script(
        args.profile,
        args.emit_slurm,
        datasets=args.dataset,
        methods=args.method,
        parameters=args.parameters,
        overrides=overrides(args.parameters),
        cpus=args.jobs or slurm.CPUS,
    )


def cluster(args: argparse.Namespace) -> "RayCluster | None":
    """The Ray cluster that is asked for; None for this machine."""
    from softadlib.training.executors import shards
    from softadlib.training.executors.ray import RayCluster

    choose("engine", args.engine, ("joblib", "ray"))
    named = [n for n in ("address", "cpus", "gpus") if getattr(args, n) is not None]
    if args.engine == "joblib":
        if named:
            raise UserError(f"--{named[0]} is for a cluster; add --engine ray")
        return None
    if args.jobs is not None:
        raise UserError(
            "--jobs is for this machine; Ray takes what its nodes have, --cpus for a task"
        )
    if args.shard is not None:
        raise UserError(
            "--shard is for machines that know nothing of each other; not with --engine ray"
        )
    found = (args.profile, args.dataset, args.method, overrides(args.parameters))
    shards.of(*found, 1)  # bad input is refused before anything is started
    return RayCluster(args.address, args.cpus, args.gpus)
