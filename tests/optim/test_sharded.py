"""SAM and its kin in two processes that share parameters (FSDP2) or states (ZeRO)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import sharded_worker


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    command = [sys.executable, "-W", "ignore", str(Path(sharded_worker.__file__))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [*command, str(rank), str(folder)], stderr=subprocess.PIPE, text=True, env=environment
        )
        for rank in (0, 1)
    ]
    try:
        for process in running:
            _, said = process.communicate(timeout=300)
            assert process.returncode == 0, said[-3000:]
    finally:
        for process in running:
            process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize(("make", "rule"), sharded_worker.SHARDED)
def test_two_processes_end_after_20_steps_where_one_does(two_processes, make, rule):
    expected, batches = sharded_worker.train(*sharded_worker.alone(rule), slice(0, 12))
    start = list(sharded_worker.network().parameters())
    assert (expected[0] - start[0]).norm() > 0.1
    assert batches == 20
    for process in two_processes:
        weights, monitored = process[make.__name__, rule]
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)
        assert monitored == 20, "one a step"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fsdp1", "FullyShardedDataParallel"),
        ("fsdp1, use_orig_params", "FullyShardedDataParallel"),
        ("msam, zero", "ZeroRedundancyOptimizer"),
    ],
)
def test_a_norm_of_one_shard_is_refused_with_what_to_use(two_processes, name, kind):
    for process in two_processes:
        assert kind in process[name]
        assert "fully_shard" in process[name]
        assert "\n" not in process[name]
