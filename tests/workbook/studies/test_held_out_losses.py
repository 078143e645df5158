"""AdaFlood's held-out losses: no model has seen the sample it is asked about; found once and kept."""

import numpy as np
import pytest
import torch
from helpers.plain_loop import plain_loop
from helpers.protocols import store_of, tiny, train
from PIL import Image
from torch import nn

from softadlib import functional as F
from softadlib._validation import UserError
from softadlib.models import MODELS, build, mlp
from softadlib.trainer.evaluation import MEASURES
from softadlib.workbook.studies.held_out_losses import held_out_losses
from softadlib.workbook.studies.load_splits import load_splits
from softadlib.workbook.studies.schema import RUN_KEY
from softadlib.workbook.studies.store import held_out_name

pytestmark = pytest.mark.usefixtures("home")


def protocol(**changes):
    values = {"grids": {"adaflood": [0.2, 0.5]}}
    if "aux_folds" in changes:
        values["settings"] = {"adaflood": {"aux_folds": changes.pop("aux_folds")}}
    return tiny(**values | changes)


def folds_of(made, n, trial=0):
    """The folds: a shuffled order, that of no epoch, in blocks that differ by one at most."""
    order = np.random.default_rng([made.seeds[trial], 0, 1]).permutation(n)
    return np.array_split(order, made.settings_of("adaflood")["aux_folds"])


def own_images(home, change=lambda x, y: None):
    """A folder of 50 training images of two classes and 10 test images; `change` works in place."""
    draw = np.random.default_rng(3)
    x = draw.integers(0, 200, (60, 4, 4), dtype=np.uint8)
    y = np.r_[np.arange(50) // 25, np.arange(10) // 5]  # in the order in which a folder is read
    x[:, 0, 0] = 50 + 100 * y
    change(x, y)
    for i, (pixels, label) in enumerate(zip(x, y)):
        file = home / "own" / ("train" if i < 50 else "test") / f"class{label}" / f"{i:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)


@pytest.fixture
def images(home):
    """A protocol on images of our own: 40 of them train."""
    own_images(home)
    own = {"dataset": "own", "folder": "own", "n_train": 0, "n_val": 0, "n_test": 0}
    return lambda **changes: protocol(**own, trials=1, batch_size=7, **changes)


# No leak


def test_image_folds_are_scaled_like_what_their_model_was_trained_on(images, home):
    """The greatest pixel of all is in one fold: the model of that fold does not know of it."""
    made = images(aux_folds=4)
    clean, at = held_out_losses(made, 0.0, 0), load_splits(made, 0.0).train[0, 11]

    def brighten(x, y):
        x[at] = 255

    own_images(home, brighten)
    got = held_out_losses(made, 0.0, 0)
    (fold,) = [f for f in folds_of(made, 40) if 11 in f]
    mates = np.setdiff1d(fold, [11])
    assert np.array_equal(got[mates], clean[mates])
    assert got[11] != clean[11]


def test_uneven_folds_are_the_plain_loop():
    """44 samples in 5 folds, float64: a network trained by autograd on what the fold leaves."""
    made = protocol(n_train=44, trials=1, model="linear")
    got = held_out_losses(made, 0.0, 0)
    x, y = load_splits(made, 0.0).to("cpu", torch.float64).part("train")
    seed, folds = made.seeds[0], folds_of(made, 44)
    assert sorted(len(fold) for fold in folds) == [8, 9, 9, 9, 9]
    for i, fold in enumerate(folds):
        rest = np.concatenate([other for j, other in enumerate(folds) if j != i])
        network = build("linear", (2,), 2, seed).double()
        plain_loop("erm", network, {"train": (x[rest], y[rest])}, seed, made.recipe, None)
        expected = nn.functional.cross_entropy(network(x[fold]), y[fold], reduction="none")
        np.testing.assert_allclose(got[fold], expected.detach(), rtol=1e-10)


def test_leave_one_out_is_one_step_from_the_mean_gradient_of_the_others():
    """As many folds as samples, one full batch, one step: w_i = w − lr/(n−1)·Σ_{j≠i} g_j."""
    made = protocol(n_train=20, aux_folds=20, epochs=1, batch_size=20, trials=1, lr=0.7)
    got = held_out_losses(made, 0.0, 0)
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


# Levels follow their samples


def test_a_gamma_of_1_is_erm_row_for_row():
    made = protocol(grids={"adaflood": 1.0}, model="mlp1x1000", epochs=8)
    ours, erm = train(made, "adaflood"), train(made, "erm")
    assert (F.flood_levels(torch.rand(9), 1.0) == 0).all()
    assert len(ours) == len(erm) == 10
    np.testing.assert_allclose(ours[list(MEASURES)], erm[list(MEASURES)], rtol=1e-10)


def test_a_model_that_diverged_gives_nan_and_the_run_is_lost_not_the_study():
    made = protocol(model="mlp1x1000", lr=1e200, n_train=50, batch_size=10)
    assert np.isnan(held_out_losses(made, 0.0, 0)).any()
    rows = train(made, "adaflood")
    assert rows[rows["epoch"] == 4]["acc_val"].isna().all()


def test_a_fold_that_leaves_a_last_batch_of_one_is_refused():
    made = protocol(n_train=44, batch_size=7)  # 35 + 1 without the fold of 8
    with pytest.raises(UserError, match=r"with these aux_folds, batch_size 7 leaves a last batch"):
        train(made, "adaflood")


def test_more_folds_than_images_are_refused(images):
    with pytest.raises(UserError, match="50 folds of 40 training samples"):
        held_out_losses(images(aux_folds=50), 0.0, 0)


# Kept


@pytest.fixture
def built(monkeypatch):
    """The networks that are built, of a registered model."""
    networks = []

    def counted(shape, classes):
        networks.append(mlp(shape, classes, width=4, depth=1))
        return networks[-1]

    monkeypatch.setitem(MODELS, "counted", counted)
    return networks


def test_they_are_found_once_and_kept_beside_the_results(built):
    made = protocol(label_noise=[0.0, 0.1], model="counted", curves="none")
    rows = train(made, "adaflood")
    assert len(built) == 4 * (5 + 2), "of 4 trials: 5 folds and 2 runs"
    store = store_of(made, "adaflood")
    assert set(store.held_out()) == {"0.0 0", "0.0 1", "0.1 0", "0.1 1"}
    assert [path.suffix for path in store.folder.glob("*-held-out*")] == [".npz"]
    built.clear()
    more = train(made.replace(trials=3, grids={"adaflood": [0.2, 0.5, 0.7]}), "adaflood")
    assert len(built) == 4 * 1 + 2 * (5 + 3)
    both = more.merge(rows, on=[*RUN_KEY, "epoch"], suffixes=("", "_old"))
    assert len(both) == len(rows)
    for name in MEASURES:
        assert both[name].equals(both[f"{name}_old"].rename(name))


def test_losses_of_near_label_noises_are_kept_apart():
    store = store_of(tiny(), "adaflood")
    noises = (0.0, 0.05, 0.1)
    for noise in noises:
        store.save_held_out(noise, 0, np.array([noise]))
    found = store.held_out()
    assert [found[held_out_name(noise, 0)].item() for noise in noises] == list(noises)


def test_a_broken_file_is_found_again():
    made = protocol()
    train(made, "adaflood")
    store = store_of(made, "adaflood")
    whole = store.held_out()
    store.held_out_file.write_bytes(store.held_out_file.read_bytes()[:100])
    assert store.held_out() == {}
    train(made.replace(grids={"adaflood": [0.2, 0.5, 0.7]}), "adaflood")
    found = store.held_out()
    assert sorted(found) == sorted(whole)
    assert all(np.array_equal(found[trial], whole[trial]) for trial in whole)
