"""The whole batch, in micro-batches and over two processes: the same gradients to 1e-9, in float64."""

import pytest
import torch
from helpers import ddp_worker
from helpers.processes import run_two
from torch import nn

from softadlib.losses.distributed import AccumulatedFlooding, gather_losses
from softadlib.losses.softad import Flooding
from softadlib.optim.sam import SAM

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


@pytest.mark.parametrize("theta", [0.3, 0.9, 5.0])
@pytest.mark.parametrize("parts", [WHOLE, EVEN, UNEVEN], ids=["whole", "even", "uneven"])
def test_flooding_in_parts_is_flooding_of_the_whole(parts, theta):
    """Validation, and a part without `backward()` (as where memory ran out), count nothing."""
    one, two = network(), network()
    value = Flooding(theta)(one(X), Y)
    value.backward()
    flooding = AccumulatedFlooding(theta)
    flooding(100 * two(X), Y).backward()
    flooding.reset()  # this batch is given up
    for _ in range(2):  # a second batch starts afresh
        two.zero_grad()
        for part in parts:
            with torch.no_grad():
                flooding(100 * two(X), Y)
            flooding(two(X[part]), Y[part])
            flooding(two(X[part]), Y[part]).backward()
        close(flooding.scale_gradients(two.parameters()), value.detach())
        close(gradients(two), gradients(one))


def test_flooding_in_parts_counts_weights_and_leaves_out_ignored_targets():
    times = torch.linspace(0, 2, 12, dtype=torch.float64)
    holes = Y.masked_fill(INDEX % 5 == 0, -100)
    base = nn.CrossEntropyLoss(weight=torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64))
    one, two = network(), network()
    Flooding(5.0, base=base)(one(X), holes, times).backward()
    flooding = AccumulatedFlooding(5.0, base=base)
    for part in UNEVEN:
        flooding(two(X[part]), holes[part], times[part]).backward()
    flooding.scale_gradients(two.parameters())
    close(gradients(two), gradients(one))


def test_flooding_in_parts_turns_sparse_gradients_once_and_skips_missing_ones():
    table, idle = nn.Embedding(12, 3, sparse=True, dtype=torch.float64), nn.Parameter(torch.ones(1))
    flooding = AccumulatedFlooding(9.0)
    for part in EVEN:
        flooding(table(INDEX[part]), Y[part]).backward()
    flooding.scale_gradients([table.weight, table.weight, idle])
    found, table.weight.grad = table.weight.grad.to_dense(), None
    Flooding(9.0)(table(INDEX), Y).backward()
    close(found, table.weight.grad.to_dense())
    assert idle.grad is None


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


def test_sam_over_flooding_in_parts_is_sam_over_flooding():
    ends = []
    for parts in (None, UNEVEN):
        model = network()
        optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.3), 0.2)
        flooding = Flooding(0.9) if parts is None else AccumulatedFlooding(0.9)

        def closure(model=model, optimizer=optimizer, flooding=flooding, parts=parts):
            optimizer.zero_grad()
            for part in parts or WHOLE:
                loss = flooding(model(X[part]), Y[part])
                loss.backward()
            return loss if parts is None else flooding.scale_gradients(model.parameters())

        for _ in range(20):
            optimizer.step(closure)
        ends.append(list(model.parameters()))
    close(*ends)


def test_gather_losses_of_one_process_is_itself():
    losses = torch.ones(3)
    assert gather_losses(losses) is losses


# Two processes


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    return run_two(ddp_worker, tmp_path_factory.mktemp("ddp"))


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


def test_flooding_and_its_like_warn_in_a_process_group(two_processes):
    flooding, cvar, softad = two_processes[0]["warning"]
    assert flooding.startswith("DistributionWarning: Flooding is a function of the whole batch")
    assert "2 processes" in flooding
    assert "AccumulatedFlooding" in flooding
    assert flooding.endswith("ddp_worker.py")
    assert "gather_losses" in cvar
    assert softad == ""


def test_without_the_first_exchange_every_process_climbs_by_its_own_part(two_processes):
    for rank in two_processes:
        close(*rank["own climb"])
    assert torch.equal(*(rank["own climb"][0] for rank in two_processes))
