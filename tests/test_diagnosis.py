"""`diagnose`: against scipy's minimiser and the gap identity, on logits made by hand."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from softadlib import diagnose


def drawn(temperature, samples=4_000, classes=5, seed=0):
    """Return logits whose best temperature is `temperature`: targets are drawn from softmax(logits / T)."""
    rng = np.random.default_rng(seed)
    logits = temperature * rng.normal(size=(samples, classes)) * 2
    p = np.exp(logits / temperature)
    p /= p.sum(1, keepdims=True)
    targets = (p.cumsum(1) > rng.random((samples, 1))).argmax(1)
    return logits, targets


def cross_entropy(logits, targets):
    """Return mean −ln softmax(logits)[target], by numpy alone."""
    shifted = logits - logits.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return -log_p[np.arange(len(targets)), targets].mean()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.3, 2.0, 4.0])
def test_the_temperature_is_the_minimum_that_scipy_finds(temperature):
    logits, targets = drawn(temperature)
    found = diagnose(logits, targets)

    def penalised(log_t):
        prior = math.exp(-log_t) - 1 + log_t
        return len(targets) * cross_entropy(logits / math.exp(log_t), targets) + prior

    best = math.exp(minimize_scalar(penalised, bounds=(-3, 3), options={"xatol": 1e-10}).x)
    assert found.temperature == pytest.approx(best, rel=1e-5)
    assert found.temperature == pytest.approx(temperature, rel=0.1)
    assert found.loss == pytest.approx(cross_entropy(logits, targets), rel=1e-9)
    assert found.loss_after == pytest.approx(cross_entropy(logits / best, targets), rel=1e-6)
    assert found.accuracy == (logits.argmax(1) == targets).mean()
    assert found.softad_helps == (temperature > math.sqrt(2))


def test_the_interval_holds_the_temperature_that_made_the_data():
    """95 % intervals of 30 draws: fewer than 24 that hold it would have a chance of 6 in 10,000."""
    held = 0
    for seed in range(30):
        low, high = diagnose(*drawn(2.0, samples=200, seed=seed)).temperature_interval
        held += low < 2.0 < high
    assert held >= 24


def test_the_gap_identity_is_exact_at_constant_confidence():
    """Two classes, every prediction with log-odds 3; right in 95 % of training and 80 % of validation."""
    logits = np.tile([3.0, 0.0], (100, 1))
    val, train = np.repeat([0, 1], [80, 20]), np.repeat([0, 1], [95, 5])
    found = diagnose(logits, val, logits, train)
    assert found.gap == pytest.approx(0.15 * 3.0, rel=1e-12)
    # e^(−training loss) is the confidence where no training sample is wrong.
    found = diagnose(logits, val, logits, np.zeros(100, int))
    assert found.gap == pytest.approx(0.2 * 3.0, rel=1e-12)
    assert found.gap_from_confidence == pytest.approx(0.2 * 3.0, rel=1e-12)


def test_without_training_logits_there_is_no_gap():
    found = diagnose(*drawn(2.0, samples=100))
    assert (found.gap, found.gap_from_confidence) == (None, None)


def test_one_logit_is_two_columns():
    logits = torch.tensor([3.0, 2.5, -4.0, 1.0, -2.0, 0.5])
    targets = torch.tensor([1, 0, 0, 1, 1, 1])
    columns = torch.stack([torch.zeros(6), logits], 1)
    wanted = diagnose(columns, targets)
    for same in (logits, logits[:, None], logits.double().numpy()):
        found = diagnose(same, targets)
        assert (found.temperature, found.loss) == pytest.approx(
            (wanted.temperature, wanted.loss), rel=1e-6
        )
    assert diagnose(logits, targets.float()).accuracy == wanted.accuracy


def test_pixels_are_samples_and_ignored_targets_are_left_out():
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, 5, 6, generator=rng)
    targets = torch.randint(3, (4, 5, 6), generator=rng)
    targets[0, 0, :3] = -100
    found = diagnose(logits, targets)
    rows = logits.permute(0, 2, 3, 1).reshape(-1, 3)
    kept = targets.flatten() != -100
    wanted = diagnose(rows[kept], targets.flatten()[kept])
    assert found.samples == 4 * 5 * 6 - 3
    assert str(found) == str(wanted)


def test_an_absent_class_half_precision_and_few_samples():
    logits, targets = drawn(3.0, samples=20, classes=3)
    half = torch.tensor(logits).half()
    found = diagnose(half, torch.tensor(targets))
    assert found.temperature == pytest.approx(
        diagnose(half.double(), targets).temperature, rel=1e-6
    )
    low, high = found.temperature_interval
    assert low < found.temperature < high
    absent = diagnose(np.column_stack([logits, np.full(20, -5.0)]), targets)
    assert np.isfinite(absent.temperature)


def test_few_samples_around_the_threshold_cannot_tell():
    logits, targets = drawn(1.4, samples=40, seed=1)
    found = diagnose(logits, targets)
    low, high = found.temperature_interval
    assert low < math.sqrt(2) < high
    assert found.softad_helps is None
    assert "too few to tell" in str(found)


def test_a_perfect_network_is_not_told_to_divide():
    """Nothing is wrong: the prior keeps T near 1 from below, and SoftAD is not advised."""
    logits = 5.0 * np.eye(4)[np.arange(400) % 4]
    found = diagnose(logits, np.arange(400) % 4)
    assert found.accuracy == 1
    assert found.temperature < 1
    assert found.softad_helps is False


@pytest.mark.parametrize(
    ("logits", "targets", "words"),
    [
        ([[math.nan, 0.0], [0.0, 1.0]], [0, 1], "NaN"),
        ([[2.0, 0.0], [0.0, 1.0]], [0, 0], "class 0"),
        ([[0.9, 0.1], [0.2, 0.8]], [0, 1], "probabilities"),
        ([[1.0, 0.0], [0.0, 1.0]], [0, 1, 1], "one target per sample"),
    ],
)
def test_what_has_no_temperature_is_refused(logits, targets, words):
    with pytest.raises(ValueError, match=words):
        diagnose(logits, targets)


def test_the_picture_shows_accuracy_against_confidence():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    logits = np.array([[3.0, 0.0]] * 4 + [[0.0, 0.5]] * 4)
    targets = np.array([0, 0, 0, 1, 1, 1, 0, 0])
    ax = diagnose(logits, targets).plot()
    before = next(line for line in ax.get_lines() if line.get_label() == "before")
    sure = 1 / (1 + math.exp(-3.0))
    doubtful = 1 / (1 + math.exp(-0.5))
    assert before.get_xdata() == pytest.approx([doubtful, sure])
    assert before.get_ydata() == pytest.approx([0.5, 0.75])


def test_a_bin_of_a_handful_is_not_drawn():
    logits = np.array([[3.0, 0.0]] * 400 + [[0.0, 0.5]] * 3)
    targets = np.array([0, 1] * 200 + [1] * 3)
    confidence, _ = diagnose(logits, targets).reliability["before"]
    assert confidence == pytest.approx([1 / (1 + math.exp(-3.0))])


def test_three_samples_say_nothing_of_softad():
    found = diagnose(torch.tensor([[3.0, 0.0], [0.0, 3.0], [3.0, 0.0]]), torch.tensor([0, 1, 0]))
    assert found.softad_helps is None
    assert "20 samples at least" in str(found)
