"""The recipes of `notebooks/recipes.ipynb`, as they stand there, with the real packages.

These are imported where they are used: every process of the tests imports this file.
"""

import copy
import functools
import gc
import logging
import math
import re

import nbformat
import numpy as np
import pytest
import torch
from helpers.workspace import REPOSITORY
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from softadlib import SAM, LossMonitor, SoftAD, hf_loss

NOTEBOOK = nbformat.read(REPOSITORY / "notebooks" / "recipes.ipynb", as_version=4)
BATCHES = 4


@pytest.fixture(autouse=True, scope="module")
def frozen_heap():
    """The Trainer collects garbage at each start, which takes longer than the training here."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def float64_and_quiet(monkeypatch):
    import transformers

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    transformers.logging.set_verbosity_error()
    yield
    torch.set_default_dtype(before)


def recipe(tag: str, **names):
    """What the notebook's cell of that tag defines, given these names."""
    (cell,) = [c for c in NOTEBOOK.cells if tag in c.metadata.get("tags", [])]
    space = {"torch": torch, "nn": nn, "SAM": SAM, "SoftAD": SoftAD, "LossMonitor": LossMonitor}
    space |= {"theta": 0.1, "radius": 0.05, "epochs": 2, "loader": data(), "network": network}
    space |= {"report": lambda model: None}
    space |= names
    exec(cell.source, space)
    return space


def printed(pattern: str) -> str:
    """The code that softadlib/README.md has between these words."""
    (code,) = re.findall(pattern, (REPOSITORY / "softadlib" / "README.md").read_text())
    return code


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8 * BATCHES, 64, generator=generator)
    return DataLoader(TensorDataset(x, torch.arange(len(x)) % 10), batch_size=8)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def gradient_by_hand(params, loss, radius):
    """Gradients of `loss()`, at SAM's point where there is a radius; the parameters stay as they are."""
    start, grads = [p.detach().clone() for p in params], torch.autograd.grad(loss(), params)
    if radius:
        size = sum(g.square().sum() for g in grads).sqrt() + 1e-12
        with torch.no_grad():
            for p, g in zip(params, grads):
                p += radius * g / size
        grads = torch.autograd.grad(loss(), params)
        with torch.no_grad():
            for p, w in zip(params, start):
                p.copy_(w)
    return grads


def by_hand(model, loss_of, radius=0.0, epochs=2, batches=None):
    """SGD with momentum written out, at SAM's point where there is a radius."""
    params = list(model.parameters())
    velocity = [torch.zeros_like(p) for p in params]
    for _ in range(epochs):
        for x, y in batches or data():
            grads = gradient_by_hand(params, lambda x=x, y=y: loss_of(model(x), y), radius)
            with torch.no_grad():
                for p, v, g in zip(params, velocity, grads):
                    v.mul_(0.9).add_(g)
                    p -= 0.1 * v
    return weights(model)


def softad(logits, targets, theta=0.1):
    losses = nn.functional.cross_entropy(logits, targets, reduction="none")
    return theta + ((1 + (losses - theta) ** 2).sqrt() - 1).mean()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


# Plain PyTorch


def test_the_plain_loop_descends_softad():
    model = recipe("plain")["model"]
    torch.testing.assert_close(weights(model), by_hand(network(), softad), rtol=0, atol=1e-12)


def test_accumulation_of_the_recipe_with_class_weights_is_the_whole_batch():
    labels = data().dataset.tensors[1].clone()
    labels[::3] = 0  # classes of unequal number, and micro-batches of unequal weight

    def batches():
        return DataLoader(TensorDataset(data().dataset.tensors[0], labels), batch_size=8)

    y = torch.cat([labels, torch.arange(1280 - len(labels)) % 10])
    defined = recipe("accumulation", loader=batches(), y=y)
    class_weights = defined["class_weights"]
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for inputs, targets in batches():
            losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
            counts = class_weights[targets]
            optimizer.zero_grad()
            value = counts * ((1 + (losses - 0.1) ** 2).sqrt() - 1)
            (value.sum() / counts.sum()).backward()
            optimizer.step()
    torch.testing.assert_close(weights(defined["model"]), weights(model), rtol=0, atol=1e-12)


def test_accumulation_of_the_recipe_for_flooding_is_flooding_of_the_whole_batch():
    """At a level that the mean loss crosses: it descends at first, and ascends later."""
    values = []

    def flooding(logits, targets):
        mean = nn.functional.cross_entropy(logits, targets)
        values.append(mean.item())
        return 2.0 + (mean - 2.0).abs()

    expected = by_hand(network(), flooding, epochs=8)
    assert min(values) < 2.0 < max(values)
    found = weights(recipe("flooding", theta=2.0, epochs=8)["model"])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_adaflood_of_the_recipe_floods_each_sample_at_its_held_out_level():
    """The levels and every step written out; each auxiliary network sees every other sample."""
    inputs, targets = data().dataset.tensors

    def trained(loss_of, samples):
        model = network()
        velocity = [torch.zeros_like(p) for p in model.parameters()]
        for _ in range(2):
            for index in samples.split(64):
                losses = nn.functional.cross_entropy(
                    model(inputs[index]), targets[index], reduction="none"
                )
                grads = torch.autograd.grad(loss_of(losses, index), list(model.parameters()))
                with torch.no_grad():
                    for p, v, g in zip(model.parameters(), velocity, grads):
                        v.mul_(0.9).add_(g)
                        p -= 0.1 * v
        return model

    everything = torch.arange(len(inputs))
    levels = torch.empty(len(inputs))
    for half in range(2):
        outside = everything % 2 == half
        auxiliary = trained(lambda losses, index: losses.mean(), everything[~outside])
        with torch.no_grad():
            logits = auxiliary(inputs[outside])
        right = logits.softmax(1)[torch.arange(len(logits)), targets[outside]]
        levels[outside] = -(0.5 * right + 0.5).log()
    expected = trained(
        lambda losses, index: (levels[index] + (losses - levels[index]).abs()).mean(), everything
    )
    found = weights(recipe("adaflood")["model"])
    torch.testing.assert_close(found, weights(expected), rtol=0, atol=1e-12)


def test_validation_is_cross_entropy_and_probabilities_those_for_which_softad_is_smallest():
    """Found by descent: of probabilities p the criterion asks for a softmax, which asks back for p."""
    p = torch.tensor([0.7, 0.2, 0.1])
    logits = torch.zeros(1, 3, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        losses = -logits.log_softmax(1)[0]
        value = p @ ((1 + (losses - 0.1) ** 2).sqrt() - 1)
        value.backward()
        return value

    optimizer.step(closure)
    names = {"model": lambda x: logits, "x_test": None, "y_test": torch.tensor([0])}
    logits = logits.detach()
    space = recipe("evaluate", **names)
    assert space["cross_entropy"] == pytest.approx(-logits.log_softmax(1)[0, 0].item())
    torch.testing.assert_close(SoftAD(0.1).probabilities(logits), p.view(1, 3), rtol=0, atol=1e-4)


@pytest.mark.parametrize("tag", ["plain-sam", "scaler", "halves"])
def test_the_plain_loop_with_sam(tag):
    model = recipe(tag, criterion=SoftAD(0.1))["model"]
    expected = by_hand(network(), softad, 0.05)
    torch.testing.assert_close(weights(model), expected, rtol=0, atol=1e-10)


def test_the_monitor_and_the_schedule_of_the_recipe():
    found = recipe("monitor", epochs=6)
    rows = found["monitor"].history
    assert [row["batches"] for row in rows] == [BATCHES * (i + 1) for i in range(6)]
    assert [row["theta"] for row in rows] == pytest.approx(
        [0.1 * min(1, (BATCHES * (i + 1) - 1) / (5 * BATCHES)) for i in range(6)]
    )
    assert found["criterion"].theta == 0.1


def test_weights_and_targets_of_the_recipe():
    """Each value written out, with θ = 0.1 above the smallest loss that the targets allow."""
    x = torch.randn(128, 64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(128) ** 2 % 10
    y[:10] = torch.arange(10)  # each class has a sample
    y[64:] = (y[:64] + 1) % 10  # the pairs are of two classes
    model = network()
    space = recipe("weights", model=model, x=x, y=y)

    def rho(losses, least):
        return least + 0.1 + (1 + (losses - least - 0.1) ** 2).sqrt() - 1

    log_q = model(x[:64]).log_softmax(1).detach()
    picked = log_q[torch.arange(64), y[:64]]
    losses = -0.9 * picked - 0.1 * log_q.mean(1)
    least = -(0.91 * math.log(0.91) + 9 * 0.01 * math.log(0.01))
    share = 1 / torch.stack([(y == y[i]).sum() for i in range(64)])
    expected = (share * rho(losses, least)).sum() / share.sum()
    torch.testing.assert_close(space["value"], expected, rtol=1e-12, atol=0)

    log_q = model(0.9 * x[:64] + 0.1 * x[64:]).log_softmax(1)
    losses = -0.9 * log_q[torch.arange(64), y[:64]] - 0.1 * log_q[torch.arange(64), y[64:]]
    expected = rho(losses, -0.9 * math.log(0.9) - 0.1 * math.log(0.1)).mean()
    torch.testing.assert_close(space["mixed_value"], expected, rtol=1e-12, atol=0)

    worst = (-picked).sort(descending=True).values
    mean = (worst[:6].sum() + 0.4 * worst[6]) / 6.4  # a tenth of 64
    torch.testing.assert_close(space["concentrated"], rho(mean, 0.0), rtol=1e-12, atol=0)


def test_many_networks_of_the_recipe_have_a_row_each():
    many = pytest.importorskip("softadlib.trainer.train_many")
    x = torch.randn(1300, 64, generator=torch.Generator().manual_seed(0))
    space = recipe(
        "many",
        x=x,
        y=torch.arange(1300) % 10,
        x_test=x[:50],
        y_test=torch.arange(50) % 10,
        epochs=1,
    )
    assert space["train_many"] is many.train_many
    rows = space["rows_of_runs"]
    assert sorted(rows.theta.unique()) == [2.0**-i for i in range(10, 0, -1)]
    assert rows.groupby("theta").seed.nunique().eq(5).all()


# Lightning


def fit(module, ckpt_path=None, **settings):
    import lightning

    quiet = (
        "logger",
        "enable_checkpointing",
        "enable_progress_bar",
        "enable_model_summary",
    )
    settings = {
        "max_epochs": 2,
        "accelerator": "cpu",
        **dict.fromkeys(quiet, False),
        **settings,
    }
    lightning.Trainer(**settings).fit(module, data(), data(), ckpt_path=ckpt_path)
    return weights(module)


@pytest.mark.parametrize("radius", [0.0, 0.05])
def test_lightning_ends_where_the_loop_by_hand_does(radius):
    module = recipe("lightning")["Classifier"](network(), SoftAD(0.1), radius)
    expected = by_hand(network(), softad, radius)
    torch.testing.assert_close(fit(module), expected, rtol=0, atol=1e-10)


def test_lightning_schedules_sam_and_counts_its_steps():
    class Scheduled(recipe("lightning")["Classifier"]):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            self.rates = [g["lr"] for g in optimizer.param_groups], optimizer
            return [optimizer], [scheduler]

    module = Scheduled(network(), SoftAD(0.1), 0.05)
    fit(module)
    before, optimizer = module.rates
    assert before == [0.1]
    assert optimizer.base.param_groups[0]["lr"] == 0.1 / 4
    assert module.trainer is not None
    assert module.trainer.global_step == 2 * BATCHES


def test_lightning_does_not_count_the_two_halves():
    """As README says: `global_step` counts what calls `step`."""

    class ByHalves(recipe("lightning")["Classifier"]):
        automatic_optimization = False

        def training_step(self, batch, index):
            optimizer = self.optimizers()
            for half in (optimizer.first_step, optimizer.second_step):
                self.manual_backward(super().training_step(batch, index))
                half(zero_grad=True)

    module = ByHalves(network(), SoftAD(0.1), 0.05)
    expected = by_hand(network(), softad, 0.05)
    torch.testing.assert_close(fit(module), expected, rtol=0, atol=1e-10)
    assert module.trainer.global_step == 0


def test_lightning_resumes_sam_from_a_checkpoint(tmp_path):
    make = recipe("lightning")["Classifier"]
    whole = fit(make(network(), SoftAD(0.1), 0.05))
    half = make(network(), SoftAD(0.1), 0.05)
    fit(half, max_epochs=1)
    half.trainer.save_checkpoint(tmp_path / "half.ckpt")
    rest = make(network(), SoftAD(0.1), 0.05)
    end = fit(rest, ckpt_path=tmp_path / "half.ckpt")
    torch.testing.assert_close(end, whole, rtol=0, atol=0)


def test_lightning_accumulates_softad_exactly():
    module = recipe("lightning")["Classifier"](network(), SoftAD(0.1))
    once = fit(module, accumulate_grad_batches=BATCHES, max_epochs=1)
    params, (x, y) = network(), data().dataset.tensors
    softad(params(x), y).backward()
    expected = torch.cat([(p - 0.1 * p.grad).detach().flatten() for p in params.parameters()])
    torch.testing.assert_close(once, expected, rtol=0, atol=1e-12)


def test_lightning_accumulating_with_sam_is_refused():
    module = recipe("lightning")["Classifier"](network(), SoftAD(0.1), 0.05)
    with pytest.raises(RuntimeError, match="accumulate_grad_batches=1"):
        fit(module, accumulate_grad_batches=2)


def test_lightning_with_a_grad_scaler_and_sam_is_refused():
    from lightning.pytorch.plugins.precision import MixedPrecision

    torch.set_default_dtype(torch.float32)
    scaler = torch.amp.GradScaler("cpu")
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    module = recipe("lightning")["Classifier"](network(), SoftAD(0.1), 0.05)
    with pytest.raises(
        ValueError, match="in Lightning use precision 'bf16-mixed', since '16-mixed'"
    ):
        fit(module, plugins=plugin)


@pytest.mark.filterwarnings("ignore:SAM found no gradients")
def test_lightning_averages_weights_of_sam_over_batch_norm():
    """The last epoch refreshes batch norm: it calls the closure without backward."""
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    module = recipe("lightning")["Classifier"](model, SoftAD(0.1), 0.05)
    averaging = StochasticWeightAveraging(0.05, swa_epoch_start=1)
    end = fit(module, callbacks=[averaging], max_epochs=3)
    assert end.isfinite().all()
    assert module.trainer.current_epoch == 4, "three, and one that refreshes batch norm"


# skorch, Keras, accelerate, ignite, fastai


def fitted_by_skorch():
    pytest.importorskip("skorch", reason="needs skorch")
    x, y = data().dataset.tensors
    space = recipe("skorch", x=x, y=y, x_test=x)
    return space["net"], torch.as_tensor(space["probabilities"])


def probabilities_by_hand(logits, theta=0.1):
    """p_k ∝ q_k/φ(−ln q_k − θ), where no q_k is near 1: there φ changes its sign."""
    q = logits.softmax(1)
    distance = -q.log() - theta
    assert distance.min() > 0
    p = q * (1 + distance**2).sqrt() / distance
    assert (p / p.sum(1, keepdim=True) - q).abs().max() > 0.01, "not the softmax"
    return p / p.sum(1, keepdim=True)


def test_skorch_ends_where_the_loop_by_hand_does():
    net, _ = fitted_by_skorch()
    expected = by_hand(network(), softad, 0.05)
    torch.testing.assert_close(weights(net.module_), expected, rtol=0, atol=1e-10)


def test_skorch_gives_probabilities():
    net, found = fitted_by_skorch()
    with torch.no_grad():
        expected = probabilities_by_hand(net.module_(data().dataset.tensors[0]))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_skorch_takes_both_columns_of_one_logit():
    """As the page says of two classes."""
    skorch = pytest.importorskip("skorch", reason="needs skorch")
    criterion = SoftAD(0.1, base=nn.BCEWithLogitsLoss())

    def both(logits):
        p = criterion.probabilities(logits.flatten())
        return torch.stack([1 - p, p], 1)

    x = torch.linspace(-3, 3, 40)[:, None]
    net = skorch.NeuralNetBinaryClassifier(
        nn.Linear(1, 1),
        criterion=SoftAD,
        criterion__theta=0.1,
        criterion__base=nn.BCEWithLogitsLoss(),
        predict_nonlinearity=both,
        max_epochs=30,
        lr=1.0,
        verbose=0,
    )
    net.fit(x.numpy(), (x.flatten() > 0).double().numpy())
    with torch.no_grad():
        p = criterion.probabilities(net.module_(x).flatten()).numpy()
    assert np.allclose(net.predict_proba(x.numpy())[:, 1], p)
    assert (net.predict(x.numpy()) == (p > 0.5)).all()


def test_skorch_searches_theta():
    from sklearn.model_selection import GridSearchCV

    net, _ = fitted_by_skorch()
    x, y = data().dataset.tensors
    settings = [
        {"criterion__theta": [theta], "predict_nonlinearity": [SoftAD(theta).probabilities]}
        for theta in (0.02, 0.2)
    ]
    search = GridSearchCV(net, settings, scoring="neg_log_loss", cv=2, error_score="raise")
    search.fit(x.numpy(), y.numpy())
    theta = search.best_params_["criterion__theta"]
    assert search.best_estimator_.criterion_.theta == theta
    with torch.no_grad():
        expected = probabilities_by_hand(search.best_estimator_.module_(x), theta)
    found = torch.as_tensor(search.predict_proba(x.numpy()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_skorch_searches_theta_and_the_reading_of_the_logits():
    """A grid of pairs: each θ by the softmax and in closed form, by cross-entropy on the other fold."""
    from sklearn.model_selection import GridSearchCV, KFold

    net, _ = fitted_by_skorch()
    names = {"partial": functools.partial, "torch": torch, "SoftAD": SoftAD}
    grid = eval(printed(r"with the grid `(.*?)`"), names)
    search = GridSearchCV(net, grid, scoring="neg_log_loss", cv=KFold(2), error_score="raise")
    x, y = data().dataset.tensors
    search.fit(x.numpy(), y.numpy())

    losses = np.zeros((2, 4))
    for fold, (train, test) in enumerate(KFold(2).split(x)):
        for i, theta in enumerate((0.02, 0.2)):
            model = network()
            batches = DataLoader(TensorDataset(x[train], y[train]), batch_size=8)
            by_hand(model, functools.partial(softad, theta=theta), 0.05, batches=batches)
            with torch.no_grad():
                logits = model(x[test])
            for j, p in enumerate((logits.softmax(1), SoftAD(theta).probabilities(logits))):
                losses[fold, 2 * i + j] = nn.functional.nll_loss(p.log(), y[test])
    found = search.cv_results_["mean_test_score"]
    assert found == pytest.approx(-losses.mean(0), rel=1e-9)
    assert len(set(found)) == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_keras_weighs_samples_where_the_criterion_gives_one_value_each(monkeypatch, reduction):
    """Keras steps by Σ w·f(ℓ)/n; of a mean it would weigh every sample by the mean weight."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="needs keras")
    x, y = data().dataset.tensors
    sample_weight = torch.linspace(0.1, 3, len(x))
    criterion = SoftAD(0.1, reduction=reduction)
    loss = eval(printed(r"compile\(loss=(lambda .*?)\)`"), {"criterion": criterion})
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
    start = [torch.tensor(w) for w in model.get_weights()]
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss=loss)
    settings = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    model.fit(x.numpy(), y.numpy(), sample_weight=sample_weight.numpy(), **settings)

    linear = nn.Linear(64, 10)
    linear.weight.data, linear.bias.data = start[0].T.clone(), start[1].clone()
    batches = DataLoader(TensorDataset(x, torch.stack([y, sample_weight], 1)), batch_size=8)

    def loss_of(logits, both):
        targets, weight = both[:, 0].long(), both[:, 1]
        losses = nn.functional.cross_entropy(logits, targets, reduction="none")
        return (weight * (0.1 + (1 + (losses - 0.1) ** 2).sqrt() - 1)).mean()

    by_hand(linear, loss_of, batches=batches)
    found = torch.tensor(model.get_weights()[0]).T
    is_close = torch.allclose(found, linear.weight.detach(), rtol=0, atol=1e-6)
    assert is_close == (reduction == "none")


def test_accelerate_takes_the_gradient_of_all_micro_batches():
    model = recipe("accelerate")["model"]
    expected = by_hand(network(), softad, 0.05)
    torch.testing.assert_close(weights(model), expected, rtol=0, atol=1e-10)


def test_accelerate_leaves_closures_out_where_it_accumulates():
    """What the recipe is for."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = network()
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1))
    model, optimizer, batches = accelerator.prepare(model, optimizer, data())
    calls = []
    for x, y in batches:

        def closure(x=x, y=y):
            calls.append(len(x))
            optimizer.zero_grad()
            loss = softad(model(x), y)
            accelerator.backward(loss)
            return loss

        with accelerator.accumulate(model):
            optimizer.step(closure)
    assert len(calls) == 2, "two passes over the last of the four"


def test_ignite_ends_where_the_loop_by_hand_does():
    pytest.importorskip("ignite", reason="needs ignite")
    model = recipe("ignite")["model"]
    expected = by_hand(network(), softad, 0.05)
    torch.testing.assert_close(weights(model), expected, rtol=0, atol=1e-10)


def test_fastai_gives_probabilities_and_classes():
    criterion = recipe("fastai")["SoftADLoss"](0.1)
    logits = torch.tensor([[0.75, 0.25], [0.4, 0.6]]).log()
    p = criterion.activation(logits)
    torch.testing.assert_close(p, SoftAD(0.1).probabilities(logits), rtol=0, atol=0)
    assert criterion.decodes(p).tolist() == [0, 1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_fastai_ends_where_the_loop_by_hand_does():
    """In float32: fastai's Recorder takes no loss in float64."""
    torch.set_default_dtype(torch.float32)
    learner_module = pytest.importorskip("fastai.learner", reason="needs fastai")
    core = pytest.importorskip("fastai.data.core", reason="needs fastai")
    optimizers = pytest.importorskip("fastai.optimizer", reason="needs fastai")
    dataset = data().dataset
    loaders = core.DataLoaders.from_dsets(
        dataset, dataset, bs=8, shuffle=False, num_workers=0, device="cpu"
    )
    learner = learner_module.Learner(
        loaders,
        network(),
        loss_func=recipe("fastai")["SoftADLoss"](0.1),
        opt_func=functools.partial(optimizers.SGD, mom=0.9),
    )
    with learner.no_logging():
        learner.fit(2, lr=0.1)
        p, targets, classes = learner.get_preds(with_decoded=True)
    expected = by_hand(network(), softad)
    torch.testing.assert_close(weights(learner.model), expected, rtol=0, atol=1e-6)
    x, y = data().dataset.tensors
    with torch.no_grad():
        expected = probabilities_by_hand(learner.model(x))
    torch.testing.assert_close(p, expected, rtol=0, atol=1e-6)
    assert torch.equal(classes, p.argmax(1))
    assert torch.equal(targets, y)


# Hugging Face


def rows(n=64, length=12, seed=0):
    """Sequences of 2 to `length` tokens: unequal numbers of counted targets."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(n):
        ids = torch.randint(1, 20, (length,), generator=generator)
        counts = torch.arange(length) < torch.randint(2, length + 1, (), generator=generator)
        labels = ids.masked_fill(~counts, -100)
        labels[0] = -100  # as the recipe says
        made.append({"input_ids": ids, "attention_mask": counts.long(), "labels": labels})
    return made


def language_model():
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "n_positions": 12, "n_embd": 8, "n_layer": 1, "n_head": 2}
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(**sizes, **rates, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def train(
    folder,
    compute_loss,
    size,
    times,
    model=None,
    optimizers=(None, None),
    kind=None,
    examples=None,
    **settings,
):
    import transformers

    model = model or language_model()
    kind = kind or transformers.Trainer
    args = transformers.TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=times,
        lr_scheduler_type="constant",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **{"max_steps": 4, "learning_rate": 0.01, **settings},
    )
    examples = examples or rows()
    trainer = kind(
        model, args, train_dataset=examples, compute_loss_func=compute_loss, optimizers=optimizers
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return trainer, weights(model)


def recipes_loss():
    return recipe("hugging-face")["compute_loss"]


def test_the_trainer_is_exact_under_accumulation_with_unequal_numbers_of_tokens(tmp_path):
    _, once = train(tmp_path, recipes_loss(), 32, 1)
    _, four = train(tmp_path, recipes_loss(), 8, 4)
    torch.testing.assert_close(four, once, rtol=0, atol=1e-12)
    assert (once - weights(language_model())).abs().max() > 0.01  # it did train


def test_the_trainers_gradient_is_that_of_the_whole_batch(tmp_path):
    """One step of SGD from the samples the Trainer drew, each token a sample."""
    model = language_model()
    seen, start = [], copy.deepcopy(model)
    model.register_forward_pre_hook(lambda _, __, named: seen.append(named), with_kwargs=True)
    lookup = {tuple(r["input_ids"].tolist()): r["labels"] for r in rows()}
    plain = torch.optim.SGD(model.parameters(), lr=0.5)
    _, end = train(
        tmp_path, recipes_loss(), 8, 4, model, (plain, None), max_steps=1, max_grad_norm=0.0
    )
    named = {k: torch.cat([s[k] for s in seen]) for k in ("input_ids", "attention_mask")}
    labels = torch.stack([lookup[tuple(i.tolist())] for i in named["input_ids"]])[:, 1:]
    assert len(labels) == 32
    logits = start(**named).logits[:, :-1]
    softad(logits[labels != -100], labels[labels != -100]).backward()
    expected = torch.cat([(p - 0.5 * p.grad).detach().flatten() for p in start.parameters()])
    torch.testing.assert_close(end, expected, rtol=0, atol=1e-10)


def test_the_callbacks_of_the_recipes_log_a_row_of_the_monitor():
    """Lightning's after each epoch, the Trainer's with each log of the training loss."""
    import lightning
    import transformers

    classifier = recipe("lightning")["Classifier"]
    space = recipe("lightning-log", lightning=lightning, Classifier=classifier)
    monitor = space["monitor"]
    assert [row["batches"] for row in monitor.history] == [BATCHES, 2 * BATCHES]
    logged = space["trainer"].logged_metrics["losses/loss"]
    assert logged.item() == pytest.approx(monitor.summary()["loss"])

    callback = recipe("hugging-face")["LogLosses"](monitor)
    state, logs = transformers.TrainerState(log_history=[{"loss": 1.0}]), {"loss": 1.0}
    callback.on_log(None, state, None, logs=logs)
    assert logs == state.log_history[-1]
    assert logs["losses/share_in_ascent"] == monitor.summary()["share_in_ascent"]
    evaluation = {"eval_loss": 1.0}
    callback.on_log(None, state, None, logs=evaluation)
    assert evaluation == {"eval_loss": 1.0}


@pytest.mark.parametrize("kind", ["SequenceClassification", "TokenClassification"])
def test_classifiers_take_the_gradient_of_all_labels(tmp_path, kind):
    """One step of SGD, 4 times 8 examples; ignored labels do not count."""
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(**sizes, **rates, num_attention_heads=2, num_labels=3)
    model = getattr(transformers, f"BertFor{kind}")(config)
    start, examples = copy.deepcopy(model), rows(32)
    for row in examples:
        labels = row["labels"]
        row["labels"] = labels.max() % 3 if kind[0] == "S" else labels.where(labels < 0, labels % 3)
    batch = {name: torch.stack([row[name] for row in examples]) for name in examples[0]}
    labels = batch.pop("labels")
    softad(start(**batch).logits[labels != -100], labels[labels != -100]).backward()
    expected = torch.cat([(p - 0.5 * p.grad).detach().flatten() for p in start.parameters()])
    loss = recipe("hugging-face")["label_loss"]
    optimizers = torch.optim.SGD(model.parameters(), lr=0.5), None
    once = {"examples": examples, "max_steps": 1, "max_grad_norm": 0.0}
    _, end = train(tmp_path, loss, 8, 4, model, optimizers, **once)
    torch.testing.assert_close(end, expected, rtol=0, atol=1e-10)


def test_means_of_micro_batches_are_not_exact(tmp_path):
    """What the recipe is for: the test above could not fail if this agreed."""
    mean = SoftAD(0.1)

    def naive(outputs, labels, num_items_in_batch=None, parts=1):
        return mean(outputs.logits[:, :-1].transpose(1, 2), labels[:, 1:]) / parts

    def quarter(*args, **named):
        return naive(*args, **named, parts=4)

    _, once = train(tmp_path, naive, 32, 1)
    _, four = train(tmp_path, quarter, 8, 4)
    assert (once - four).abs().max() > 1e-4


def test_the_evaluation_loss_is_cross_entropy(tmp_path):
    trainer, _ = train(tmp_path, recipes_loss(), 32, 1, eval_strategy="no")
    found = trainer.evaluate(rows()[:8])["eval_loss"]
    batch = {k: torch.stack([r[k] for r in rows()[:8]]) for k in rows()[0]}
    labels = batch.pop("labels")[:, 1:]
    with torch.no_grad():
        logits = trainer.model.eval()(**batch).logits[:, :-1]
        expected = nn.functional.cross_entropy(logits[labels != -100], labels[labels != -100])
    assert found == pytest.approx(expected.item(), rel=1e-9)


def test_an_optimizer_of_sam_in_the_trainer_is_refused_with_the_mixin(tmp_path):
    model = language_model()
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match=r"Trainer use softadlib\.SAMTrainerMixin"):
        train(tmp_path, recipes_loss(), 8, 1, model, (optimizer, None))


class Ordered(recipe("hugging-face")["SAMTrainer"]):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def sam_by_hand(steps, clip=0.0):
    """AdamW by torch around SAM's gradient of batches of 32, in order."""
    model = language_model().train()
    base = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0, eps=1e-8)
    params = list(model.parameters())
    for step in range(steps):
        part = rows()[32 * (step % 2) :][:32]
        batch = {k: torch.stack([r[k] for r in part]) for k in part[0]}
        labels = batch.pop("labels")[:, 1:]

        def loss(batch=batch, labels=labels):
            logits = model(**batch).logits[:, :-1]
            return softad(logits[labels != -100], labels[labels != -100])

        for p, g in zip(params, gradient_by_hand(params, loss, 0.05)):
            p.grad = g
        if clip:
            nn.utils.clip_grad_norm_(params, clip)
        base.step()
    return weights(model)


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_sam_in_the_trainer_is_the_loop_by_hand_under_accumulation(tmp_path, times, clip):
    """Unequal numbers of tokens in 4 micro-batches of 8: still SAM of the 32."""
    trainer, end = train(
        tmp_path, recipes_loss(), 32 // times, times, kind=Ordered, max_steps=4, max_grad_norm=clip
    )
    torch.testing.assert_close(end, sam_by_hand(4, clip), rtol=0, atol=1e-12)
    assert (end - train(tmp_path, recipes_loss(), 32, 1)[1]).abs().max() > 1e-3
    assert trainer._micro_batches == []


def test_a_micro_batch_of_an_interrupted_training_is_not_run_again(tmp_path):
    class Restarted(Ordered):
        def training_step(self, model, inputs, *args, **settings):
            if (
                "_micro_batches" not in self.__dict__
            ):  # interrupted; a new training starts from zero
                super().training_step(model, dict(inputs), *args, **settings)
                model.zero_grad()
            return super().training_step(model, inputs, *args, **settings)

    settings = {"kind": Restarted, "max_steps": 2, "max_grad_norm": 0.0}
    _, end = train(tmp_path, recipes_loss(), 8, 4, **settings)
    torch.testing.assert_close(end, sam_by_hand(2), rtol=0, atol=1e-12)


def test_sam_in_the_trainer_restores_every_bit_and_hides_its_second_pass(tmp_path):
    model, criterion = language_model(), SoftAD(0.1)
    monitor, before = LossMonitor(criterion), weights(model)
    train(tmp_path, hf_loss(criterion, shift=True), 16, 2, model, kind=Ordered, learning_rate=0.0)
    assert torch.equal(weights(model), before)
    assert monitor.summary()["batches"] == 4 * 2
