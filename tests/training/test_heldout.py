"""AdaFlood's held-out losses: no model has seen the sample it is asked about; found once and kept."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from helpers.workspace import TINY, make_home
from torch import nn

from softadlib import functional as F
from softadlib._validation import UserError
from softadlib.data import images
from softadlib.models import build
from softadlib.results.folder import ResultFolder
from softadlib.results.schema import MEASURES, RUN_KEY
from softadlib.training import heldout, study
from softadlib.training.engines import factory
from softadlib.training.engines.vmap import VmapEngine
from softadlib.training.executors.local import TaskContext
from softadlib.training.inputs import load_splits
from softadlib.training.protocol import Protocol
from softadlib.training.trainer import Trainer, train_runs


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    return make_home(tmp_path)


def protocol(**changes):
    values = {"profile": "tiny", "dataset": "gaussian", "device": "cpu", **TINY}
    values["grids"] = {"adaflood": [0.2, 0.5]}
    own = {name: changes.pop(name) for name in ("aux", "aux_folds") if name in changes}
    return Protocol.from_dict({**values, "settings": {"adaflood": own}, **changes})


def place(made):
    return ResultFolder(made.profile, made.dataset, "adaflood", made.fingerprint("adaflood"))


def with_data(monkeypatch, change):
    """From here on, the data are what `change(x, y)` leaves behind."""

    def load(*args, **kwargs):
        splits = load_splits(*args, **kwargs)
        x, y = splits.x.clone(), splits.y.clone()
        change(x, y)
        return dataclasses.replace(splits, x=x, y=y)

    monkeypatch.setattr(heldout, "load_splits", load)


def fold_networks(made, splits, trial=0):
    """State of each fold's model, and the fold."""
    n, found = splits.train.shape[1], []
    folds = np.array([heldout._order(seed, n) for seed in made.seeds])
    folds = [
        torch.from_numpy(f)
        for f in np.array_split(folds, made.settings_of("adaflood")["aux_folds"], axis=1)
    ]
    for i, held in enumerate(folds):
        rest = splits.train.gather(1, heldout.without(folds, i))
        some = dataclasses.replace(splits, train=rest)
        ((_, network, _),) = heldout.train_erm(made, 0.0, [trial], some, TaskContext())
        found.append((held[trial], network.state_dict()))
    return found


def corrupt(splits, trial, sample):
    """The same data with one training sample moved far away and its label turned."""
    x, y, at = splits.x.clone(), splits.y.clone(), splits.train[trial, sample]
    x[at], y[at] = 50.0, 1 - y[at]
    return dataclasses.replace(splits, x=x, y=y)


# No leak


def test_a_models_weights_do_not_know_the_samples_it_is_asked_about():
    """300 points: whatever one becomes, the model of its fold is the same bits; every other moves."""
    made = protocol(model="mlp1x1000", n_train=300, trials=1, epochs=2, batch_size=50)
    splits = load_splits(made, 0.0)
    before = fold_networks(made, splits)
    for sample in (0, 123, 299):
        for (held, old), (_, new) in zip(
            before, fold_networks(made, corrupt(splits, 0, sample)), strict=True
        ):
            same = all(torch.equal(old[name], new[name]) for name in old)
            assert same == (sample in held), sample


@pytest.mark.parametrize("folds", [2, 5, 7])
def test_a_corrupted_sample_changes_its_own_loss_and_the_losses_of_the_other_folds(
    folds, monkeypatch
):
    made = protocol(n_train=300, trials=2, aux_folds=folds)
    clean, data = heldout.held_out(made, 0.0, [0, 1]), load_splits(made, 0.0)
    assert clean.shape == (2, 300)
    assert np.isfinite(clean).all()

    def change(x, y):
        at = data.train[1, 7]
        y[at] = 1 - y[at]

    with_data(monkeypatch, change)
    got = heldout.held_out(made, 0.0, [0, 1])
    assert np.array_equal(got[0], clean[0]), "the other trial has other data"
    order = heldout._order(made.seeds[1], 300)
    (fold,) = [f for f in np.array_split(order, folds) if 7 in f]
    changed = got[1] != clean[1]
    assert changed[7]
    assert not changed[np.setdiff1d(fold, [7])].any(), "they share the model, which saw neither"
    assert changed[np.setdiff1d(order, fold)].all()


def test_folds_are_a_shuffled_order_in_blocks_uneven_by_one_and_no_epochs_order():
    order = heldout._order(17716, 44)
    assert sorted(order) == list(range(44))
    assert not np.array_equal(order, heldout._order(961412, 44))
    for epoch in range(50):
        assert not np.array_equal(order, np.random.default_rng([17716, epoch]).permutation(44))
    folds = [torch.from_numpy(f)[None] for f in np.array_split(order, 5)]
    assert [f.shape[1] for f in folds] == [9, 9, 9, 9, 8]
    for i, held in enumerate(folds):
        both = torch.cat([held, heldout.without(folds, i)], 1)
        assert sorted(both[0].tolist()) == list(range(44))


def test_uneven_folds_are_the_plain_loop():
    """44 samples in 5 folds, float64: a network trained by autograd on what the fold leaves."""
    made = protocol(n_train=44, trials=1, aux_folds=5, model="linear")
    (got,) = heldout.held_out(made, 0.0, [0])
    x, y = load_splits(made, 0.0).to("cpu", torch.float64).part("train")
    order, seed = heldout._order(made.seeds[0], 44), made.seeds[0]
    for held in np.array_split(order, 5):
        rest = np.array([i for i in order if i not in held])
        network = build("linear", (2,), 2, seed).double()
        optimizer = torch.optim.SGD(network.parameters(), made.lr)
        for epoch in range(1, made.epochs + 1):
            for batch in np.split(
                rest[np.random.default_rng([seed, epoch]).permutation(len(rest))],
                range(made.batch_size, len(rest), made.batch_size),
            ):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
                optimizer.step()
        expected = nn.functional.cross_entropy(network(x[held]), y[held], reduction="none")
        np.testing.assert_allclose(got[held], expected.detach(), rtol=1e-10)


def test_leave_one_out_on_a_closed_form():
    """No step is taken where lr is next to 0: every model is the initial one, every loss known."""
    made = protocol(n_train=20, aux_folds=20, lr=1e-300, batch_size=10)
    got = heldout.held_out(made, 0.0, [0, 1])
    splits = load_splits(made, 0.0).to("cpu", torch.float64)
    for trial in (0, 1):
        x, y = splits.part("train", trial)
        logits = build("linear", (2,), 2, made.seeds[trial]).double()(x)
        expected = nn.functional.cross_entropy(logits, y, reduction="none")
        np.testing.assert_allclose(got[trial], expected.detach(), rtol=1e-12)


def test_leave_one_out_is_one_step_from_the_mean_gradient_of_the_others():
    """k = n, one full batch, one step: w_i = w − lr/(n−1)·Σ_{j≠i} g_j."""
    made = protocol(n_train=20, aux_folds=20, epochs=1, batch_size=20, trials=1, lr=0.7)
    (got,) = heldout.held_out(made, 0.0, [0])
    x, y = load_splits(made, 0.0).to("cpu", torch.float64).part("train")
    start = build("linear", (2,), 2, made.seeds[0]).double()
    with torch.no_grad():
        wrong = start(x).softmax(1) - nn.functional.one_hot(y, 2)
        for i in range(20):
            others = [j for j in range(20) if j != i]
            weight = start.weight - 0.7 / 19 * wrong[others].T @ x[others]
            bias = start.bias - 0.7 / 19 * wrong[others].sum(0)
            loss = nn.functional.cross_entropy(weight @ x[i] + bias, y[i])
            assert got[i] == pytest.approx(loss.item(), rel=1e-10)


def test_image_folds_are_scaled_like_what_their_model_was_trained_on(monkeypatch):
    """The greatest pixel of all is in one fold: no other model's inputs know of it."""
    rng = np.random.default_rng(3)
    pool = rng.integers(0, 200, (60, 1, 4, 4), dtype=np.uint8)
    y = rng.integers(0, 2, 60)
    made = protocol(dataset="digits", n_train=0, n_val=0, n_test=0, batch_size=8, aux_folds=4)
    load = lambda *_: images.Images(pool[:50], y[:50], pool[50:], y[50:])  # noqa: E731
    monkeypatch.setattr("softadlib.training.inputs.load_images", load)
    clean = heldout.held_out(made, 0.0, [0])[0]
    at = load_splits(made, 0.0).train[0, 11]
    pool[at] = 255
    got = heldout.held_out(made, 0.0, [0])[0]
    (fold,) = [f for f in np.array_split(heldout._order(made.seeds[0], 40), 4) if 11 in f]
    mates = np.setdiff1d(fold, [11])
    assert np.array_equal(got[mates], clean[mates])
    assert got[11] != clean[11]


# Levels follow their samples


def test_levels_do_not_care_in_which_order_samples_or_knobs_come():
    made = protocol()
    runs = list(made.runs("adaflood"))
    known = heldout.sample_inputs(made, runs)
    for order in itertools.permutations(range(4)):
        again = heldout.sample_inputs(made, [runs[i] for i in order])
        assert torch.equal(again["aux"], known["aux"])
    rows = train_runs(made, runs, {4}, samples=known)
    assert train_runs(made, runs[::-1], {4}, samples=known).equals(rows)


def test_a_step_is_that_of_any_order_of_its_batch(monkeypatch):
    """Each loss meets the level of its own sample, wherever in the batch it stands."""
    made = protocol()
    runs = list(made.runs("adaflood"))
    sweep = Trainer(made, runs, samples=heldout.sample_inputs(made, runs))
    ends = []
    for order in (torch.arange(20), torch.arange(19, -1, -1), torch.randperm(20)):
        monkeypatch.setattr(factory, "ENGINES", [VmapEngine])  # by autograd, all runs side by side
        stack = sweep.engine(runs)
        stack.step(torch.optim.SGD(list(stack.params.values()), 0.5), order.expand(2, 20))
        ends.append({k: v.clone() for k, v in stack.params.items()})
    for name, value in ends[0].items():
        for other in ends[1:]:
            torch.testing.assert_close(other[name], value, rtol=1e-12, atol=1e-14)


def test_a_gamma_of_1_is_erm_row_for_row():
    made = protocol(grids={"adaflood": [1.0]}, model="mlp1x1000", epochs=8)
    ours = study.run(made, "adaflood")
    erm = study.run(made, "erm")
    assert (F.flood_levels(torch.rand(9), 1.0) == 0).all()
    assert len(ours) == len(erm) == 10
    for name in ("trial", "epoch", *MEASURES):
        assert ours[name].equals(erm[name]), name


def test_gammas_differ_and_the_levels_are_those_of_the_formula():
    made = protocol(epochs=30)
    rows = study.run(made, "adaflood")
    ends = rows[rows["epoch"] == 30].pivot(index="trial", columns="knob", values="loss_train")
    assert (ends[0.2] != ends[0.5]).all()
    aux = heldout.sample_inputs(made, made.runs("adaflood"), place(made))["aux"]
    expected = -torch.log(0.5 * torch.exp(-aux) + 0.5)
    torch.testing.assert_close(F.flood_levels(aux, 0.5), expected)
    assert (expected <= math.log(2)).all()


def test_the_engines_refuse_the_method_without_its_samples():
    made = protocol()
    runs = list(made.runs("adaflood"))
    with pytest.raises(ValueError, match="adaflood needs aux of every training sample"):
        train_runs(made, runs, {4})
    with pytest.raises(UserError, match=r"aux is of \(2, 19\) training samples"):
        Trainer(made, runs, samples={"aux": torch.zeros(2, 19)})


def test_other_methods_ask_for_nothing():
    made = protocol(grids={"softad": [0.1]})
    assert heldout.sample_inputs(made, made.runs("softad"), place(made)) is None
    assert heldout.sample_inputs(made, made.runs("erm")) is None


# The last layer


LAST = {"aux": "last-layer", "model": "mlp1x1000", "n_train": 50, "batch_size": 10, "trials": 1}


def test_the_last_layer_variant_trains_one_network_and_then_last_layers_alone(monkeypatch):
    made = protocol(**LAST)
    trained, layers, fill = [], [], heldout._load

    def spy(network, state):
        filled = fill(network, state)
        is_layer = isinstance(network, nn.Linear)
        (layers if is_layer else trained).append(
            {k: v.clone() for k, v in filled.state_dict().items()}
        )
        return filled

    monkeypatch.setattr(heldout, "_load", spy)
    (got,) = heldout.held_out(made, 0.0, [0])
    assert np.isfinite(got).all()
    assert len(trained) == 1
    assert [set(layer) for layer in layers] == [{"weight", "bias"}] * heldout.CHUNKS
    assert len({layer["weight"].sum().item() for layer in layers}) == heldout.CHUNKS
    # by hand: each chunk's losses are those of the one network with that layer at its end
    network = build("mlp1x1000", (2,), 2, made.seeds[0]).double().eval()
    x, y = load_splits(made, 0.0).to("cpu", torch.float64).part("train")
    chunks = np.array_split(heldout._order(made.seeds[0], 50), heldout.CHUNKS)
    for chunk, layer in zip(chunks, layers):
        network.load_state_dict(trained[0] | {f"3.{k}": v for k, v in layer.items()})
        expected = nn.functional.cross_entropy(network(x[chunk]), y[chunk], reduction="none")
        np.testing.assert_allclose(got[chunk], expected.detach(), rtol=1e-10)


def test_a_tuned_layer_has_not_seen_its_chunk(monkeypatch):
    """The features have; so only what comes after them is compared, with the features as they were."""
    made = protocol(**LAST | {"model": "linear"})  # its features are the inputs
    (clean,) = heldout.held_out(made, 0.0, [0])
    at = load_splits(made, 0.0).train[0, 13]

    def change(x, y):
        y[at] = 1 - y[at]

    with_data(monkeypatch, change)
    (got,) = heldout.held_out(made, 0.0, [0])
    order = heldout._order(made.seeds[0], 50)
    (chunk,) = [c for c in np.array_split(order, 10) if 13 in c]
    changed = got != clean
    assert changed[13]
    assert not changed[np.setdiff1d(chunk, [13])].any()
    assert changed[np.setdiff1d(order, chunk)].all()


def test_a_network_that_ends_in_anything_else_has_no_last_layer():
    with pytest.raises(UserError, match="needs a network that ends in a linear layer, not ReLU"):
        heldout.without_head(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


@pytest.mark.parametrize("aux", ["folds", "last-layer"])
def test_a_model_that_diverged_gives_nan_and_the_run_is_lost_not_the_study(aux):
    made = protocol(aux=aux, model="mlp1x1000", lr=1e200, n_train=50, batch_size=10)
    assert np.isnan(heldout.held_out(made, 0.0, [0])).any()
    rows = study.run(made, "adaflood")
    assert rows[rows["epoch"] == 4]["acc_val"].isna().all()


# Bad settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aux": "fold"}, "aux 'fold' unknown; choose from folds, last-layer"),
        ({"aux_folds": 1}, "aux_folds must be a whole number of at least 2, got 1"),
        ({"aux_folds": 2.0}, "aux_folds must be a whole number of at least 2, got 2.0"),
        ({"aux_folds": 21}, "aux_folds is 21, but n_train is 20; give at most that"),
        (
            {"grids": {"adaflood": [1.5]}},
            "gamma in grids.adaflood must be a number of at least 0 and at most 1, got 1.5",
        ),
        ({"grids": {"adaflood": [-0.5]}}, "gamma in grids.adaflood must be a number of at least 0"),
    ],
)
def test_bad_settings_are_one_line(changes, message):
    with pytest.raises(UserError, match=message):
        protocol(**changes)


def test_a_fold_that_leaves_a_last_batch_of_one_is_refused_before_anything_is_trained(monkeypatch):
    monkeypatch.setattr(heldout, "train_erm", None)
    made = protocol(n_train=44, batch_size=7, aux_folds=5)  # 35 + 1 without the fold of 8
    with pytest.raises(UserError, match=r"with aux_folds 5, batch_size 7 leaves a last batch of"):
        study.run(made, "adaflood")


def test_more_folds_than_images_are_refused(monkeypatch):
    with pytest.raises(UserError, match="5000 folds of 1153 training samples"):
        heldout.held_out(
            protocol(dataset="digits", n_train=0, n_val=0, n_test=0, aux_folds=5000), 0.0, [0]
        )


def test_results_made_before_the_new_fields_keep_their_fingerprint():
    made = protocol()
    assert made.fingerprint("adaflood") != protocol(aux_folds=4).fingerprint("adaflood")
    assert made.fingerprint("adaflood") != protocol(aux="last-layer").fingerprint("adaflood")
    facts = {k: v for k, v in made.to_dict().items() if k != "settings"}
    assert Protocol.from_provenance({**facts, "sigma": 1.0}).fingerprint(
        "adaflood"
    ) == made.fingerprint("adaflood")


# Kept


def found(monkeypatch):
    """The trials whose losses are found from here on."""
    calls, original = [], heldout.held_out

    def spy(made, noise, trials, *rest, **more):
        calls.append((noise, list(trials)))
        return original(made, noise, trials, *rest, **more)

    monkeypatch.setattr(heldout, "held_out", spy)
    return calls


def test_they_are_found_once_and_kept_beside_the_results(monkeypatch):
    calls, made = found(monkeypatch), protocol(label_noise=[0.0, 0.1])
    rows = study.run(made, "adaflood")
    assert calls == [(0.0, [0]), (0.0, [1]), (0.1, [0]), (0.1, [1])]
    kept = sorted(p.name for p in (place(made).path / "held-out").iterdir())
    mark = made.fingerprint("adaflood")
    assert kept == [f"{mark}-{q}-{t}.npz" for q in ("0.0", "0.1") for t in (0, 1)]
    grown = dict(label_noise=[0.0, 0.1], trials=3, grids={"adaflood": [0.2, 0.5, 0.7]})
    more = study.run(protocol(**grown), "adaflood")
    assert calls[4:] == [(0.0, [2]), (0.1, [2])]
    both = more.merge(rows, on=[*RUN_KEY, "epoch"], suffixes=("", "_old"))
    for name in MEASURES:
        assert both[name].equals(both[f"{name}_old"].rename(name))
    study.run(made, "adaflood", resume=False)
    assert len(calls) == 6 + 4


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_a_broken_file_is_found_again(damage, monkeypatch):
    made = protocol()
    runs = made.runs("adaflood")
    whole = heldout.sample_inputs(made, runs, place(made))
    path = place(made)._held_out(0.0, 1)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    path.write_bytes({"cut": content[:100], "empty": b"", "other": b"x" * 500}.get(damage, content))
    calls = found(monkeypatch)
    assert torch.equal(heldout.sample_inputs(made, runs, place(made))["aux"], whole["aux"])
    assert calls == [(0.0, [1])]
    heldout.sample_inputs(made, runs, place(made))
    assert len(calls) == 1


def test_without_a_place_nothing_is_written(home):
    made = protocol()
    heldout.sample_inputs(made, made.runs("adaflood"))
    assert not (home / "outputs").exists()


@pytest.mark.parametrize("aux", ["folds", "last-layer"])
def test_two_processes_give_the_same_rows(aux):
    changes = {"model": "mlp1x1000", "dtype": "float32", "trials": 3, "aux": aux}
    alone = study.run(protocol(**changes), "adaflood")
    both = study.run(protocol(**changes, profile="other"), "adaflood", jobs=2)
    assert both.equals(alone)
    assert np.isfinite(alone[alone["epoch"] == 4]["loss_test"]).all()
