"""Time one training step of ERM, Flooding, iFlood, SoftAD and SAM in turns, on one thread.

    python tests/benchmarks/overhead.py [--rounds N] [--json FILE]

Every method trains one run, on the same data from the same weights: in a loop of your own with
torch's Adam and a criterion of the library, and in the engine that trains studies. A round is a few
steps of each method, one after another. Times are CPU seconds of the thread, so that other programs
count less; ratios to ERM are taken within a round. The table has medians and quartiles over rounds.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import softadlib
from softadlib import SAM, Flooding, IFlood, SoftAD
from softadlib.models import build
from softadlib.trainer.device import device_name, numerics
from softadlib.trainer.recipe import batches
from softadlib.trainer.splits import Splits
from softadlib.workbook.studies.protocol import Protocol
from softadlib.workbook.studies.train_runs import make_engine

METHODS = ("erm", "flooding", "iflood", "softad", "sam")
KNOB = 0.1
CASES = {"mlp4x500": ((2,), 2, 50), "mlp1x1000": ((784,), 10, 200)}
"""Network → shape of a sample, classes, samples of a batch: those of the paper."""
STEPS = 4
"""Steps of each method in a round."""

Step = Callable[[], object]


def own_loop(network: str, method: str) -> Step:
    """Return `STEPS` steps of a loop that a user of the library would write."""
    shape, classes, batch = CASES[network]
    torch.manual_seed(0)
    inputs = torch.randn(batch, *shape)
    targets = torch.randint(classes, (batch,))
    model = build(network, shape, classes, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criteria = {"flooding": Flooding(KNOB), "iflood": IFlood(KNOB), "softad": SoftAD(KNOB)}
    criterion = criteria.get(method, nn.CrossEntropyLoss())

    def gradient() -> torch.Tensor:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        return loss

    sam = SAM(optimizer, KNOB) if method == "sam" else None

    def steps() -> None:
        for _ in range(STEPS):
            if sam is not None:
                sam.step(gradient)
            else:
                gradient()
                optimizer.step()

    return steps


def engine(network: str, method: str) -> Step:
    """Return `STEPS` steps of the engine that trains studies."""
    shape, classes, batch = CASES[network]
    generator = torch.Generator().manual_seed(0)
    samples = batch * STEPS
    x = torch.randn(samples + 2, *shape, generator=generator)
    y = torch.randint(classes, (samples + 2,), generator=generator)
    train, val, test = torch.arange(samples + 2)[None].split([samples, 1, 1], dim=1)
    splits = Splits(x, y, train, val, test, classes)
    grids = {} if method == "erm" else {method: [KNOB]}
    protocol = Protocol(
        profile="overhead",
        dataset="gaussian",
        model=network,
        batch_size=batch,
        epochs=1,
        trials=1,
        device="cpu",
        grids=grids,
    )
    trained = make_engine(protocol, protocol.runs(method), splits)
    trained.start(protocol.recipe)

    def steps() -> None:
        for positions in batches(protocol.seeds, 1, samples, batch):
            trained.step(positions)

    return steps


def time_in_turns(steps: dict[str, Step], rounds: int) -> pd.DataFrame:
    """Return CPU seconds of a step, a row per round and a column per method."""
    for step in steps.values():
        step()
    rows = []
    for _ in range(rounds):
        row = {}
        for method, step in steps.items():
            started = time.process_time()
            step()
            row[method] = (time.process_time() - started) / STEPS
        rows.append(row)
    return pd.DataFrame(rows)


def summary(seconds: pd.DataFrame) -> pd.DataFrame:
    """Return median and quartiles of milliseconds and of the ratio to ERM, a line per method."""
    ratio = seconds.div(seconds["erm"], axis=0)
    columns = {}
    for name, table in {"ms": 1000 * seconds, "ratio": ratio}.items():
        for end, share in {"": 0.5, "_low": 0.25, "_high": 0.75}.items():
            columns[name + end] = table.quantile(share)
    return pd.DataFrame(columns).rename_axis("method")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()

    torch.set_num_threads(1)
    tables = []
    with numerics(torch.device("cpu"), "fp32"):
        for network in CASES:
            for loop, make in {"own loop": own_loop, "engine": engine}.items():
                steps = {method: make(network, method) for method in METHODS}
                table = summary(time_in_turns(steps, given.rounds))
                tables.append(table.reset_index().assign(network=network, loop=loop))
                print(f"{network}, {loop}, {given.rounds} rounds\n{table.round(3)}\n", flush=True)
    if given.json:
        facts = {
            "machine": device_name(torch.device("cpu")),
            "torch": torch.__version__,
            "softadlib": softadlib.__version__,
            "rounds": given.rounds,
            "steps a round": STEPS,
        }
        rows = pd.concat(tables)[["network", "loop", *tables[0].columns[:-2]]]
        rows = rows.round(5).to_dict("records")
        given.json.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
