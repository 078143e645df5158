"""A Slurm array script that trains a profile in shards, and the job that puts them together."""

import math
import os
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from softadlib import _workspace
from softadlib._validation import UserError
from softadlib.results import reader
from softadlib.training.executors import shards
from softadlib.training.protocol import Protocol

CPUS = 8
"""Processes of a job by default."""
MARGIN = 2
"""Factor on the time that measured speed predicts: a job killed at its limit costs more."""


def script(
    profile: str,
    count: int,
    *,
    datasets: Sequence[str] | None,
    methods: Sequence[str] | None,
    parameters: Sequence[Sequence[str]],
    overrides: Mapping[str, Any],
    cpus: int,
) -> str:
    """Return the text for `sbatch`: `count` jobs of `cpus` processes each. Raises UserError."""
    if not 1 <= count <= 10_000:
        raise UserError(f"--shards must be a number of jobs from 1 to 10000, got {count}")
    protocols, parts = shards.split_profile(profile, datasets, methods, overrides, count)
    chosen = [profile]
    for flag, values in (("--dataset", datasets), ("--method", methods)):
        chosen += [word for value in values or () for word in (flag, value)]
    chosen += [word for pair in parameters for word in ("-p", *pair)]
    softad = shlex.join([sys.executable, "-m", "softadlib.workbook.cli"])
    words, home = shlex.join(chosen), shlex.quote(str(_workspace.home()))
    data = os.environ.get("SOFTAD_DATA")
    units = sorted(len(part) for part in parts)
    lines = [
        "#!/bin/bash",
        f"# softad {profile} in {count} jobs of {units[0]} to {units[-1]} units (dataset × method × noise × trial).",
        "# Submit this file, then the job that puts the shards together and draws:",
        "#   first=$(sbatch --parsable FILE)",
        '#   sbatch --dependency=afterok:"$first" --array=1 FILE finish',
        "# A job that failed is submitted again by its number, sbatch --array=I FILE; what is done stays.",
        f"#SBATCH --job-name=softad-{profile}",
        f"#SBATCH --array=1-{count}",
        "#SBATCH --ntasks=1",
        f"#SBATCH --cpus-per-task={cpus}",
        f"#SBATCH --output=softad-{profile}-%A_%a.log",
        *_time(protocols, parts, cpus),
        *_gpu({p.device for p in protocols.values()}),
        "set -euo pipefail",
        f"export SOFTAD_HOME={home} OMP_NUM_THREADS=1",
        *([f"export SOFTAD_DATA={shlex.quote(data)}"] if data else []),
        f"jobs=${{SLURM_CPUS_PER_TASK:-{cpus}}}",
        'if [ "${1:-}" = finish ]; then',
        f'  {softad} run {words} -j "$jobs"',
        "else",
        f'  {softad} train {words} --shard "$SLURM_ARRAY_TASK_ID/{count}" -j "$jobs"',
        "fi",
    ]
    return "\n".join(lines) + "\n"


def _gpu(devices: set[str]) -> list[str]:
    """Return the line that asks for a GPU; a comment where the protocols say auto."""
    if devices == {"cpu"}:
        return []
    if devices & {"cuda"}:
        return ["#SBATCH --gpus-per-task=1"]
    return ["##SBATCH --gpus-per-task=1   (with one # where the nodes have GPUs)"]


def _time(
    protocols: Mapping[str, Protocol], parts: Sequence[Sequence[shards.Unit]], cpus: int
) -> list[str]:
    """Return the lines that ask for time, by the stored speed of every network.

    Where a network was never measured, the line is a comment to fill in.
    """
    speed = speeds()
    unmeasured = sorted({p.model for p in protocols.values()} - set(speed))
    if unmeasured:
        why = f"no stored result says how fast {unmeasured[0]} is here"
        return [f"##SBATCH --time=HH:MM:SS   ({why})"]
    costs = (sum(u.cost / speed[protocols[u.dataset].model] for u in part) for part in parts)
    seconds = max(costs) / cpus
    minutes = max(10, math.ceil(MARGIN * seconds / 60))
    hours, minutes = divmod(minutes, 60)
    return [
        f"# {MARGIN} times what {cpus} processes need at the speed of the results in outputs/:",
        f"#SBATCH --time={hours:02}:{minutes:02}:00",
    ]


def speeds() -> dict[str, float]:
    """Return the operations per second of one process by network, from stored sessions on a CPU."""
    measured: dict[str, list[float]] = {}
    for profile in reader.profiles():
        for folder in reader.finished(profile):
            try:
                facts = folder.read_provenance()
                on_cpu = [
                    s.other for s in facts.sessions if "cpu" in s.device and "gflops" in s.other
                ]
                speeds = [other["gflops"] * 1e9 / other["jobs"] for other in on_cpu]
                measured.setdefault(facts.protocol["model"], []).extend(s for s in speeds if s > 0)
            except (UserError, KeyError, TypeError, ZeroDivisionError):
                continue  # broken, or of an early version
    return {model: statistics.median(speeds) for model, speeds in measured.items() if speeds}
