"""The order of samples against a loop that reads data as the authors' script does."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from softadlib._validation import UserError
from softadlib.workbook.data.make_splits import synthetic_splits
from softadlib.workbook.studies.authors_order import authors_orders
from softadlib.workbook.studies.protocol import Protocol
from softadlib.workbook.studies.train_runs import train_runs

SIZES = (20, 10, 30)
TINY = {
    "profile": "tiny",
    "dataset": "spiral",
    "model": "mlp2x256",
    "batch_size": 8,
    "epochs": 3,
    "trials": 2,
    "dtype": "float64",
    "batch_order": "authors",
    **dict(zip(("n_train", "n_val", "n_test"), SIZES)),
}


def the_authors_loop(seed):
    """Train ERM with one global generator; return the losses of the three parts at the end."""
    splits = synthetic_splits("spiral", [seed], 0.0, SIZES)
    parts = [TensorDataset(*splits.part(name)) for name in ("train", "val", "test")]
    torch.manual_seed(seed)
    train = DataLoader(parts[0], batch_size=8, shuffle=True)
    whole = [DataLoader(part, batch_size=len(part)) for part in parts]
    layers = [nn.Linear(2, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU()]
    layers += [nn.Linear(256, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(256, 2)).double()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001)
    for epoch in range(4):
        network.train()
        for x, y in train if epoch else ():
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x.double()), y).backward()
            optimizer.step()
        network.eval()
        with torch.no_grad():
            losses = [
                nn.functional.cross_entropy(network(x.double()), y).item()
                for part in whole
                for x, y in part
            ]
    return losses


def test_a_study_in_the_authors_order_is_the_authors_loop():
    protocol = Protocol(**TINY)
    rows = train_runs(protocol, protocol.runs("erm"), {3})
    for row, seed in zip(rows.itertuples(), protocol.seeds):
        found = [row.loss_train, row.loss_val, row.loss_test]
        np.testing.assert_allclose(found, the_authors_loop(seed), rtol=1e-9)


def test_orders_are_permutations_that_leave_the_generator_alone():
    before = torch.random.get_rng_state()
    orders = authors_orders("linear", (2,), 2, 5, 20, 4)
    assert torch.equal(before, torch.random.get_rng_state())
    assert orders.shape == (4, 20)
    assert (np.sort(orders, axis=1) == np.arange(20)).all()
    assert len({tuple(order) for order in orders}) == 4


def test_only_synthetic_sets_have_it():
    with pytest.raises(UserError, match="batch_order authors is for synthetic sets"):
        Protocol(**{**TINY, "dataset": "fashionmnist"})
