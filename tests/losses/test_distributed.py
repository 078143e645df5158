"""The whole batch, in micro-batches and over two processes: the same gradients to 1e-9, in float64."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import ddp_worker
from torch import nn

from softadlib.losses.adaflood import AdaFlood
from softadlib.losses.distributed import AccumulatedFlooding, gather_losses
from softadlib.losses.softad import ERM, Flooding, IFlood, SoftAD
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
    one, two = network(), network()
    value = Flooding(theta)(one(X), Y)
    value.backward()
    flooding = AccumulatedFlooding(theta)
    for _ in range(2):  # a second batch starts afresh
        two.zero_grad()
        for part in parts:
            flooding(two(X[part]), Y[part]).backward()
        close(flooding.scale_gradients(two.parameters()), value.detach())
        close(gradients(two), gradients(one))


def test_flooding_in_parts_counts_weights_and_leaves_out_ignored_targets():
    holes = Y.masked_fill(INDEX % 5 == 0, -100)
    base = nn.CrossEntropyLoss(weight=torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64))
    one, two = network(), network()
    Flooding(5.0, base=base)(one(X), holes).backward()
    flooding = AccumulatedFlooding(5.0, base=base)
    for part in UNEVEN:
        flooding(two(X[part]), holes[part]).backward()
    with pytest.raises(ValueError, match=r"must be tensors, such as model.parameters\(\), got \[{"):
        flooding.scale_gradients(torch.optim.SGD(two.parameters()).param_groups)
    flooding.scale_gradients(two.parameters())
    close(gradients(two), gradients(one))


def test_flooding_in_parts_turns_sparse_gradients_and_skips_missing_ones():
    table, idle = nn.Embedding(12, 3, sparse=True, dtype=torch.float64), nn.Parameter(torch.ones(1))
    flooding = AccumulatedFlooding(9.0)
    for part in EVEN:
        flooding(table(INDEX[part]), Y[part]).backward()
    flooding.scale_gradients([*table.parameters(), idle])
    found, table.weight.grad = table.weight.grad.to_dense(), None
    Flooding(9.0)(table(INDEX), Y).backward()
    close(found, table.weight.grad.to_dense())
    assert idle.grad is None


def test_a_batch_that_is_given_up_can_be_forgotten():
    one, two = network(), network()
    flooding = AccumulatedFlooding(0.4)
    flooding(100 * one(X), Y).backward()
    flooding.reset()
    one.zero_grad()
    for model, criterion in ((one, flooding), (two, AccumulatedFlooding(0.4))):
        for part in UNEVEN:
            criterion(model(X[part]), Y[part]).backward()
        criterion.scale_gradients(model.parameters())
    close(gradients(one), gradients(two))


def test_flooding_in_parts_needs_a_part():
    with pytest.raises(RuntimeError, match=r"AccumulatedFlooding\.scale_gradients needs a part"):
        AccumulatedFlooding(0.1).scale_gradients([])


@pytest.mark.parametrize("name", ["erm", "iflood", "softad", "adaflood"])
def test_the_others_add_up_over_parts_of_any_size(name):
    """Even parts by their means; any parts by their sums, divided by the number of all samples."""
    make = {
        "erm": lambda **k: ERM(**k),
        "iflood": lambda **k: IFlood(0.6, **k),
        "softad": lambda **k: SoftAD(0.6, **k),
        "adaflood": lambda **k: AdaFlood(ddp_worker.LEVELS, **k),
    }[name]
    extra = [INDEX] if name == "adaflood" else []
    one, two, three = network(), network(), network()
    make()(one(X), Y, *extra).backward()
    for part in EVEN:
        (make()(two(X[part]), Y[part], *(e[part] for e in extra)) / 3).backward()
    for part in UNEVEN:
        criterion = make(reduction="sum")
        (criterion(three(X[part]), Y[part], *(e[part] for e in extra)) / 12).backward()
    close(gradients(two), gradients(one))
    close(gradients(three), gradients(one))


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
    folder = tmp_path_factory.mktemp("ddp")
    command = [sys.executable, "-W", "ignore", str(Path(ddp_worker.__file__))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [*command, str(rank), str(folder)], stderr=subprocess.PIPE, text=True, env=environment
        )
        for rank in (0, 1)
    ]
    try:
        for process in running:
            _, said = process.communicate(timeout=180)
            assert process.returncode == 0, said[-3000:]
    finally:
        for process in running:
            process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


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


def test_a_part_without_backward_does_not_count():
    """As where memory ran out, or a validation with gradients: ∇ of the others stays that of their mean."""
    w = torch.nn.Parameter(torch.tensor([[1.0], [0.0]]))
    criterion = AccumulatedFlooding(0.1)
    x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([1, 1])
    criterion(x @ w.T, y)  # no backward
    criterion(x @ w.T, y).backward()
    value = criterion.scale_gradients(w)
    expected = torch.nn.Parameter(w.detach().clone())
    loss = Flooding(0.1)(x @ expected.T, y)
    loss.backward()
    assert torch.allclose(w.grad, expected.grad)
    assert value == pytest.approx(loss.item())
