"""`train_many` trains every run as a loop over it alone would."""

import functools
import sys
import threading

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.plain_loop import plain_loop
from helpers.refusals import refused
from torch import nn

from softadlib._validation import UserError
from softadlib.methods import METHODS, Method
from softadlib.trainer.recipe import Recipe
from softadlib.trainer.train_many import train_many


def data(n=60):
    generator = torch.manual_seed(3)
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return {"train": (x[:40], y[:40]), "val": (x[40:50], y[40:50]), "test": (x[50:], y[50:])}


def perceptron():
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def with_tanh():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def with_tied_weights():
    network = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))
    network[2].weight = network[0].weight
    return network


def with_hook():
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    network[0].register_forward_hook(lambda module, inputs, outputs: 0.1 * outputs)
    return network


@pytest.mark.parametrize("make_model", [perceptron, with_tanh, with_tied_weights, with_hook])
def test_every_run_ends_where_a_loop_over_it_alone_does(make_model):
    runs = [
        {"method": "softad", "theta": 0.05, "seed": 1},
        {"method": "softad", "theta": 0.5, "seed": 1},
        {"method": "softad", "theta": 0.05, "seed": 2, "lr": 0.01},
        {"seed": 2},
    ]
    rows = train_many(make_model, data(), runs, epochs=3, batch_size=20, device="cpu")
    assert rows["run"].tolist() == [0, 1, 2, 3]
    for row, run in zip(rows.to_dict("records"), runs):
        torch.manual_seed(run["seed"])
        recipe = Recipe("adam", run.get("lr", 1e-3), 20, 3)
        method, model = run.get("method", "erm"), make_model().double()
        expected = plain_loop(method, model, data(), run["seed"], recipe, run.get("theta"))[-1]
        assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("make_model", [with_tied_weights])
def test_the_networks_have_the_losses_of_the_table(make_model):
    runs = [{"method": "sam", "radius": 0.1, "seed": 1}, {"seed": 2}]
    runs.append({"method": "sam", "radius": 0.2, "seed": 1})  # trained beside the first
    sets = data()
    options = {"epochs": 2, "batch_size": 20, "device": "cpu", "networks": True}
    rows, networks = train_many(make_model, sets, runs, **options)
    for row, network in zip(rows.to_dict("records"), networks):
        loss = nn.functional.cross_entropy(network(sets["test"][0]), sets["test"][1])
        assert loss.item() == pytest.approx(row["loss_test"], rel=1e-12)


def arrays(x, y):
    return x.numpy(), y.numpy()


def frames(x, y):
    """As `train_test_split` leaves them: the index is no row number."""
    index = range(1000, 1000 + len(y))
    return pd.DataFrame(x.numpy(), index, columns=list("abcd")), pd.Series(y.numpy(), index)


def views(x, y):
    """Arrays that torch takes as they are no more than it takes a foreign byte order."""
    backwards = np.ascontiguousarray(x.numpy()[::-1])
    return backwards[::-1], y.numpy().astype(np.uint16)


def big_endian(x, y):
    return x.numpy().astype(">f8"), y.numpy().astype(">i4")


@pytest.mark.parametrize("kind", [arrays, frames, views, big_endian])
def test_arrays_frames_generators_and_tensors_of_theta_give_the_same_table(kind):
    runs = [{"method": "softad", "theta": theta} for theta in (0.1, 0.25)]
    expected = train_many(perceptron, data(), runs, epochs=1, batch_size=20)
    own_data = {part: kind(*pair) for part, pair in data().items()}
    given = (run | {"theta": torch.tensor(run["theta"], dtype=torch.float64)} for run in runs)
    rows = train_many(perceptron, own_data, given, epochs=1, batch_size=20)
    pd.testing.assert_frame_equal(rows, expected, check_exact=True)


def test_a_frame_may_have_columns_of_numbers_and_of_booleans():
    expected = {}
    given = {}
    for part, (x, y) in data().items():
        right = x[:, 3] > 0
        expected[part] = torch.cat([x[:, :3], right[:, None]], 1), y
        given[part] = pd.DataFrame(x[:, :3].numpy()).assign(right=right.numpy()), y
    options = {"epochs": 1, "batch_size": 20}
    rows = train_many(perceptron, given, [{}], **options)
    pd.testing.assert_frame_equal(rows, train_many(perceptron, expected, [{}], **options))


def test_inputs_may_be_indices_of_an_embedding_in_floats():
    class Lookup(nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = nn.Parameter(torch.randn(3, 3))

        def forward(self, x):
            return self.scores[x.long()]

    x = torch.arange(60.0, dtype=torch.float64) % 3
    part = (x, x.long())
    rows = train_many(Lookup, {"train": part, "val": part}, [{}], epochs=9, batch_size=20, lr=0.5)
    assert rows["acc_val"].tolist() == [1.0]


def test_only_batch_norm_needs_more_than_one_sample_in_the_last_batch():
    rows = train_many(with_tanh, data(), [{}], epochs=1, batch_size=13)  # 40 = 3 · 13 + 1
    assert np.isfinite(rows["loss_train"]).all()


def test_curves_hold_the_start_every_second_epoch_and_the_end():
    rows = train_many(perceptron, data(), [{}, {}], epochs=5, batch_size=20, measure_every=2)
    assert rows[["run", "epoch"]].to_numpy().tolist() == [
        [r, e] for r in (0, 1) for e in (0, 2, 4, 5)
    ]


def test_without_a_test_part_there_are_no_such_columns():
    parts = {name: part for name, part in data().items() if name != "test"}
    rows = train_many(perceptron, parts, [{}], epochs=1, batch_size=20)
    assert not {"loss_test", "acc_test"} & set(rows.columns)


def test_runs_may_be_a_frame_or_its_records():
    """Which have NaN where a run has no value, and whole numbers as floats."""
    runs = [
        {"method": "softad", "theta": 0.1, "seed": 3},
        {"method": "sam", "radius": 0.05},
        {"mine": 7.0},
    ]
    frame = pd.DataFrame(runs)
    given = {"epochs": 1, "batch_size": 20}
    expected = train_many(perceptron, data(), runs, **given)
    assert expected["seed"].tolist() == [3, 0, 0]
    for same in (frame, frame.to_dict("records")):
        rows = train_many(perceptron, data(), same, **given)
        pd.testing.assert_frame_equal(rows, expected, check_like=True)


def test_inputs_of_whole_numbers_are_taken_as_they_are():
    whole = {part: (x.mul(10).long(), y) for part, (x, y) in data().items()}
    floats = {part: (x.float(), y) for part, (x, y) in whole.items()}
    options = {"epochs": 1, "batch_size": 20}
    rows = train_many(perceptron, whole, [{}], **options)
    pd.testing.assert_frame_equal(rows, train_many(perceptron, floats, [{}], **options))


# What would be wrong without a word is one line

LETTERS = [pd.DataFrame(torch.randn(40, 4), columns=list(names)) for names in ("abcd", "abdc")]
ZEROS = torch.zeros(40, dtype=torch.int64)
BROKEN = torch.randn(9, 4)
BROKEN[3, 0] = torch.nan
SHIFTED = (pd.DataFrame(np.zeros((9, 4))), pd.Series([0] * 9, index=range(9, 0, -1)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.GRU(4, 3, num_layers=2, dropout=0.3)

    def forward(self, x):
        return self.layers(x)[0]


class Noisy(nn.Linear):
    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


class Locked(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.lock = threading.Lock()


def fixed():
    return nn.Linear(4, 3).requires_grad_(False)


def part(x, y, name="val"):
    """Arguments whose data have another part."""
    return {"data": data() | {name: (x, y)}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"runs": iter(())}, ["runs is empty"]),
        ({"runs": {"method": "softad", "theta": 0.1}}, ["a list with a dict for each run"]),
        ({"make_model": nn.Linear(4, 3)}, ["make_model must be a function", "got a network"]),
        ({"data": {"train": data()["train"]}}, ['"train" and "val"', "got ['train']"]),
        ({"runs": [{"method": "softad"}]}, ["run 0: theta", "got None"]),
        ({"runs": [{"method": "softad", "theta": -1}]}, ["run 0: theta", "at least 0", "-1"]),
        ({"runs": [{"method": "sam", "theta": 0.1, "radius": 0.1}]}, ["'theta'", "only radius"]),
        ({"runs": [{"method": "sfotad", "theta": 0.1}]}, ["did you mean 'softad'"]),
        ({"runs": [{"method": "softad", "theta": 0.1, "sigma": 2.0}]}, ["'sigma' cannot be"]),
        ({"runs": [{"weight_decay": 0.1}]}, ["'weight_decay' cannot be a column"]),
        ({"runs": [{"label_smoothing": 0.1}]}, ["'label_smoothing' cannot be a column"]),
        ({"runs": [{"epoch": 3}]}, ["'epoch' cannot be a column"]),
        ({"optimizer": "adamm"}, ["did you mean 'adam'"]),
        ({"momentum": 0.9}, ["only sgd has momentum", "0.9"]),
        ({"batch_size": 13}, ["batch_size 13", "batch norm cannot train"]),
        ({"make_model": fixed}, ["weight has requires_grad=False"]),
        ({"make_model": Recurrent}, ["make_model", "random numbers", "dropout"]),
        ({"make_model": lambda: Noisy(4, 3)}, ["make_model", "random numbers"]),
        ({"make_model": lambda: nn.LazyLinear(3)}, ["make_model", "lazy"]),
        ({"make_model": Locked}, ["make_model cannot be copied", "lock"]),
        ({"data": data() | {"tset": data()["test"]}}, ["did you mean 'test'"]),
        (part(torch.randn(9, 4), torch.full((9,), 5)), ["go up to 5", "3 outputs"]),
        (part(torch.randn(9, 4), -ZEROS[:9] - 1), ["labels run from -1"]),
        (part(torch.randn(9, 4), torch.eye(9).long()), ["targets of val", "(9, 9)"]),
        (part(torch.randn(9, 4), torch.rand(9)), ["targets of val", "float32"]),
        (part(torch.randn(9, 4), ZEROS[:8]), ["targets of val", "9 inputs", "(8,)"]),
        (part(torch.randn(0, 4), ZEROS[:0]), ["val", "empty"]),
        (part(BROKEN, ZEROS[:9], "test"), ["NaN", "in 1 of 59"]),
        (part(*SHIFTED), ["of val have different indices", "targets.to_numpy()"]),
        (
            {"data": {"train": (LETTERS[0], ZEROS), "val": (LETTERS[1], ZEROS)}},
            ["same columns", "['a', 'b', 'c', 'd'], ['a', 'b', 'd', 'c']"],
        ),
    ],
)
def test_what_would_be_wrong_without_a_word_is_one_line(changes, words):
    given = {"make_model": perceptron, "data": data(), "runs": [{}], "epochs": 1, "batch_size": 20}
    refused(lambda: train_many(**given | changes), *words, kind=UserError)


def from_one_seed():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


@pytest.mark.parametrize("make_model", [from_one_seed, functools.cache(perceptron)])
def test_a_model_that_gives_every_seed_the_same_weights_is_named(make_model):
    runs = [{"seed": 1}, {"seed": 2}]
    with pytest.warns(UserWarning, match="several seeds the same weights"):
        rows = train_many(make_model, data(), runs, epochs=1, batch_size=20)
    assert rows["loss_train"].nunique() == 2, "the order of samples differs"


def test_two_of_three_seeds_with_the_same_weights_are_named():
    def make_model():
        torch.manual_seed(torch.initial_seed() % 2)
        return perceptron()

    runs = [{"seed": seed} for seed in (1, 2, 3)]
    with pytest.warns(UserWarning, match="several seeds the same weights"):
        train_many(make_model, data(), runs, epochs=1, batch_size=20)


def test_it_needs_pandas_alone_beside_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    refused(
        lambda: train_many(perceptron, data(), [{}], epochs=1, batch_size=20),
        "pip install pandas",
        kind=ImportError,
    )


def test_a_registered_method_in_a_loop_of_ones_own(monkeypatch):
    """As the page `extend` says, ten steps of all samples."""

    def spread_penalty(losses, strength):
        return losses.mean() + strength * losses.var(unbiased=False)

    mine = Method("mine", "Mine", hyperparameter="strength", objective=spread_penalty)
    monkeypatch.setitem(METHODS, "mine", mine)
    plain = {"epochs": 10, "batch_size": 40, "optimizer": "sgd", "lr": 0.1}
    rows = train_many(with_tanh, data(), [{"method": "mine", "strength": 0.3}], **plain)
    inputs, targets = data()["train"]
    torch.manual_seed(0)
    model = with_tanh().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
        METHODS["mine"].objective(losses, 0.3).backward()
        optimizer.step()
    loss = nn.functional.cross_entropy(model(inputs), targets).item()
    assert rows["loss_train"].item() == pytest.approx(loss, rel=1e-12)


WRONG_OBJECTIVES = {
    "takes the losses alone": lambda losses: losses.mean(),
    "a value per sample": lambda losses, knob: losses,
    "a number": lambda losses, knob: 3.0,
    "nothing": lambda losses, knob: None,
    "no gradient": lambda losses, knob: losses.mean().detach(),
}


@pytest.mark.parametrize("make_model", [perceptron, with_tanh])  # an engine each
@pytest.mark.parametrize("wrong", WRONG_OBJECTIVES)
def test_an_objective_that_returns_no_single_value_is_named(monkeypatch, make_model, wrong):
    mine = Method("mine", label="Mine", objective=WRONG_OBJECTIVES[wrong])
    monkeypatch.setitem(METHODS, "mine", mine)
    with pytest.raises(UserError) as raised:
        train_many(make_model, data(), [{"method": "mine"}], epochs=1, batch_size=20, device="cpu")
    assert "'mine' is called as objective(losses, hyperparameter)" in str(raised.value)


@pytest.mark.parametrize("wrong", [{"epochs": -1}, {"epochs": 1.5}, {"batch_size": 0}])
def test_epochs_and_batches_are_whole_numbers(wrong):
    data = {part: (torch.randn(8, 2), torch.arange(8) % 2) for part in ("train", "val")}
    arguments = {"epochs": 1, "batch_size": 4} | wrong
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must be"):
        train_many(lambda: torch.nn.Linear(2, 2), data, [{"method": "erm"}], **arguments)
