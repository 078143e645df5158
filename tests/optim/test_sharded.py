"""SAM and its kin in two processes that share parameters (FSDP2) or states (ZeRO)."""

import pytest
import torch
from helpers import sharded_worker
from helpers.processes import run_ranks


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    return run_ranks(sharded_worker, tmp_path_factory.mktemp("sharded"))


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
