"""One process of two: SAM and its kin over sharded parameters and sharded states, on gloo; run by `test_sharded`."""

import sys
from datetime import timedelta

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from softadlib import ASAM, MSAM, SAM, LossMonitor, SoftAD

RULES = {
    "sam": lambda base: SAM(base, 0.2),
    "asam": lambda base: ASAM(base, 0.5),
    "msam": lambda base: MSAM(base, 0.5),
}
SGD_SETTINGS = {"lr": 0.3, "momentum": 0.9}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def batch():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(12, 4, generator=generator, dtype=torch.float64), torch.arange(12) % 3


def fully_sharded(rule):
    model = network()
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    return model, RULES[rule](SGD(model.parameters(), **SGD_SETTINGS))


def data_parallel(rule):
    model = DistributedDataParallel(network())
    return model, RULES[rule](SGD(model.parameters(), **SGD_SETTINGS))


def zero_redundancy(rule):
    model = DistributedDataParallel(network())
    base = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=SGD, **SGD_SETTINGS)
    return model, RULES[rule](base)


SHARDED = [
    *[(fully_sharded, rule) for rule in ("sam", "asam", "msam")],
    (data_parallel, "msam"),
    *[(zero_redundancy, rule) for rule in ("sam", "asam")],
]


def alone(rule):
    model = network()
    return model, RULES[rule](SGD(model.parameters(), **SGD_SETTINGS))


def train(model, optimizer, part):
    """Return the weights after 20 steps by `part` of the batch, and how many batches were monitored."""
    x, y = batch()
    criterion = SoftAD(0.1)
    monitor = LossMonitor(criterion)

    def closure():
        optimizer.zero_grad()
        loss = criterion(model(x[part]), y[part])
        loss.backward()
        return loss

    for _ in range(20):
        optimizer.step(closure)
    weights = [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in model.parameters()]
    return weights, monitor.summary()["batches"]


def fsdp1(use_orig_params):
    model = FullyShardedDataParallel(
        network(), use_orig_params=use_orig_params, device_id=torch.device("cpu")
    )
    return SAM(SGD(model.parameters(), lr=0.1), 0.2)


REFUSED = {
    "fsdp1": lambda: fsdp1(use_orig_params=False),
    "fsdp1, use_orig_params": lambda: fsdp1(use_orig_params=True),
    "msam, zero": lambda: zero_redundancy("msam"),
}


def refusal(make):
    try:
        make()
    except ValueError as error:
        return str(error)
    return "nothing"


def main(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=120),
    )
    half = slice(6 * rank, 6 * rank + 6)
    results = {}
    for make, rule in SHARDED:
        results[make.__name__, rule] = train(*make(rule), half)
    for name, make in REFUSED.items():
        results[name] = refusal(make)
    torch.save(results, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
