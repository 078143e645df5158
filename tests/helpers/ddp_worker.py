"""One process of two: trains by its half of the batch under DDP on gloo; run by `test_distributed`."""

import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD

from softadlib import ASAM, FDGR, GNP, SAM
from softadlib import functional as F
from softadlib.losses.adaflood import AdaFlood
from softadlib.losses.robust import ChiSquareDRO, CVaR, Tilted, gather_losses
from softadlib.losses.softad import ERM, Flooding, IFlood, SoftAD

LEVELS = torch.linspace(0.2, 1.4, 12, dtype=torch.float64)
CRITERIA = {
    "erm": ERM,
    "iflood": lambda: IFlood(0.6),
    "softad": lambda: SoftAD(0.6),
    "adaflood": lambda: AdaFlood(LEVELS),
    "flooding": lambda: Flooding(0.9),
    "cvar": lambda: CVaR(0.6),
    "chi2": lambda: ChiSquareDRO(0.5),
    "tilted": lambda: Tilted(2.0),
}
SPREAD_OUT = {  # the same over both processes' losses
    "cvar": lambda losses: F.cvar(losses, 0.6),
    "chi2": lambda losses: F.chi2_dro(losses, 0.5),
    "tilted": lambda losses: F.tilted(losses, 2.0),
    "flooding": lambda losses: F.flooding(losses, 0.9),
}
WRAPPERS = {
    "sam": lambda base, model: SAM(base, 0.2),
    "asam": lambda base, model: ASAM(base, 0.5, model=model),
    "gnp": lambda base, model: GNP(base, 0.7, 0.2),
    "fdgr": lambda base, model: FDGR(base, 0.3, 0.1),
}


def batch():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    return x, torch.arange(12) % 3, torch.arange(12)


def train(criterion: str, wrapper: str | None, parts: list[slice], process: int | None = None):
    """The parameters after 20 steps and the last loss; alone, or as one process of two."""
    torch.manual_seed(0)
    model = net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    if process is not None:
        net = DDP(model, gradient_as_bucket_view=wrapper in ("gnp", "fdgr"))
    base = SGD(model.parameters(), lr=0.3, momentum=0.9, weight_decay=0.01)
    optimizer = WRAPPERS[wrapper](base, net) if wrapper else base
    x, y, index = batch()
    loss_of = CRITERIA[criterion]()

    def closure():
        optimizer.zero_grad()
        for part in parts:
            if criterion in SPREAD_OUT and process is not None:
                losses = nn.functional.cross_entropy(net(x[part]), y[part], reduction="none")
                loss = SPREAD_OUT[criterion](gather_losses(losses))
            else:
                extra = [index[part]] if criterion == "adaflood" else []
                loss = loss_of(net(x[part]), y[part], *extra) / len(parts)
            loss.backward()
        return loss

    for _ in range(20):
        loss = optimizer.step(closure)
    return {n: p.detach().clone() for n, p in model.named_parameters()}, loss.detach()


def main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    results = {}
    for name in CRITERIA:
        halves = (slice(0, 8), slice(8, 12)) if name in SPREAD_OUT else None
        half = halves[rank] if halves else slice(6 * rank, 6 * rank + 6)
        results[name, None] = train(name, None, [half], rank)
    for wrapper in WRAPPERS:
        for name in ("softad", "flooding"):
            results[name, wrapper] = train(name, wrapper, [slice(6 * rank, 6 * rank + 6)], rank)
    results["own climb"] = own_climb(rank)
    torch.save(results, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def own_climb(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of SAM with `first_sync=False`: the weight after it, and what it should be."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    net, (x, y, _) = DDP(model), batch()
    optimizer = SAM(SGD(model.parameters(), lr=0.3), 0.5, model=net, first_sync=False)
    start = model.weight.detach().clone(), model.bias.detach().clone()

    def objective(params, half):
        return nn.functional.cross_entropy(x[half] @ params[0].T + params[1], y[half])

    there = []
    for half in (slice(0, 6), slice(6, 12)):
        g = torch.func.grad(objective)(start, half)
        size = (g[0].square().sum() + g[1].square().sum()).sqrt()
        climbed = tuple(w + 0.5 * v / size for w, v in zip(start, g))
        there.append(torch.func.grad(objective)(climbed, half)[0])
    half = slice(6 * rank, 6 * rank + 6)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x[half]), y[half])
        loss.backward()
        return loss

    optimizer.step(closure)
    return model.weight.detach(), start[0] - 0.3 * (there[0] + there[1]) / 2


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
