"""The whole batch, in micro-batches and over processes: the same gradients to 1e-9, in float64."""

import pytest
import torch
from helpers import ddp_worker, group_worker
from helpers.processes import run_ranks
from torch import nn

from softadlib import gather_losses

X, Y, INDEX = ddp_worker.batch()
UNEVEN = [slice(0, 5), slice(5, 6), slice(6, 12)]
EVEN = [slice(0, 4), slice(4, 8), slice(8, 12)]
WHOLE = [slice(0, 12)]


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def gradients(model):
    return [p.grad.clone() for p in model.parameters()]


def network():
    torch.manual_seed(0)
    return nn.Linear(4, 3).double()


# Micro-batches


@pytest.mark.parametrize("name", ["erm", "iflood", "softad", "adaflood"])
def test_the_others_add_up_over_parts_of_any_size(name):
    """Even parts by their means; any parts by their sums, divided by the number of all samples."""
    make = ddp_worker.CRITERIA[name]
    data = (Y, INDEX) if name == "adaflood" else (Y,)
    whole, even, uneven = network(), network(), network()
    make()(whole(X), *data).backward()
    for part in EVEN:
        (make()(even(X[part]), *(d[part] for d in data)) / 3).backward()
    criterion = make()
    criterion.reduction = "sum"
    for part in UNEVEN:
        (criterion(uneven(X[part]), *(d[part] for d in data)) / 12).backward()
    close(gradients(even), gradients(whole))
    close(gradients(uneven), gradients(whole))


def test_gather_losses_of_one_process_is_itself():
    losses = torch.ones(3)
    assert gather_losses(losses) is losses


# Two processes


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    return run_ranks(ddp_worker, tmp_path_factory.mktemp("ddp"))


CASES = [(name, None) for name in ddp_worker.CRITERIA] + [
    (name, wrapper) for wrapper in ddp_worker.WRAPPERS for name in ("softad", "flooding")
]


@pytest.mark.parametrize(("criterion", "wrapper"), CASES)
def test_two_processes_end_after_20_steps_where_one_does(two_processes, criterion, wrapper):
    params, loss = ddp_worker.train(criterion, wrapper, WHOLE)
    ends = [rank[criterion, wrapper] for rank in two_processes]
    for end, _ in ends:
        close(end, params)
    values = torch.stack([value for _, value in ends])
    close(values.mean() if criterion not in ddp_worker.SPREAD_OUT else values[0], loss)


def test_without_the_first_exchange_every_process_climbs_by_its_own_part(two_processes):
    for rank in two_processes:
        close(*rank["own climb"])
    assert torch.equal(*(rank["own climb"][0] for rank in two_processes))


def test_losses_of_a_group_that_does_not_begin_at_rank_0(tmp_path):
    """CVaR of five losses in processes 1 and 2 of three: the mean of 9, 4 and 3."""
    _, one, two = run_ranks(group_worker, tmp_path, 3)
    assert one[0].item() == two[0].item() == pytest.approx(16 / 3)
    close(torch.cat([one[1], two[1]]), torch.tensor([0, 1, 0, 1, 1]) / 3)
    assert one[2] == two[2] == torch.inf
