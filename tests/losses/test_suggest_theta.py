"""θ without a grid: closed forms, numbers by hand and brute force against estimators and the rule."""

import math
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, softmax, xlogy

from softadlib.losses.threshold import bayes as B
from softadlib.losses.threshold import calibration as C
from softadlib.losses.threshold import minimiser as M
from softadlib.losses.threshold import suggest as T
from softadlib.losses.threshold.calibration import fit_temperature
from softadlib.losses.threshold.suggest import suggest_theta

LN2 = math.log(2)


def draw(n, classes, spread, seed):
    """Logits (n, K) and labels drawn from their softmax: a calibrated network."""
    rng = np.random.default_rng(seed)
    z = spread * rng.standard_normal((n, classes))
    return z, (z + rng.gumbel(size=z.shape)).argmax(1)


def cross_entropy(z, y):
    return -log_softmax(z, 1)[np.arange(len(y)), y].mean()


def binary_entropy(p):
    return -xlogy(p, p) - xlogy(1 - p, 1 - p)


Z, Y = draw(200, 2, 2.0, 0)


class TestBayesError:
    def test_by_hand(self):
        estimate = B.bayes_error([0.1, 0.6, 1.0, 0.5], delta=0.05)
        assert estimate.value == pytest.approx((0.1 + 0.4 + 0 + 0.5) / 4)
        half = math.sqrt(math.log(2 / 0.05) / (8 * 4))
        assert estimate.high == min(0.5, estimate.value + half)
        assert estimate.low == max(0, estimate.value - half)

    def test_many_classes(self):
        soft = torch.tensor([[0.5, 0.3, 0.2], [0.0, 0.0, 1.0]])
        assert B.bayes_error(soft).value == pytest.approx(0.25)
        wide = B.bayes_error(soft.repeat(5000, 1))
        assert wide.high - wide.value == pytest.approx(2 / 3 * math.sqrt(math.log(40) / 20000))

    def test_interval_covers(self):
        rng = np.random.default_rng(0)
        c = rng.beta(0.5, 0.5, (400, 60))
        truth = 0.5 - 1 / math.pi  # E min(c, 1−c) under the arcsine law
        estimates = [B.bayes_error(row) for row in c]
        assert np.mean([i.low <= truth <= i.high for i in estimates]) >= 0.95
        assert np.mean([i.value for i in estimates]) == pytest.approx(truth, abs=0.005)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: B.bayes_error([[0.5, 0.6]]), "sum to one in every row; row 0 sums to 1.1"),
            (lambda: B.bayes_error([1.2]), "probabilities"),
            (lambda: B.bayes_error([math.nan]), "NaN or infinity in 1 places"),
            (lambda: B.bayes_error([]), "shape"),
            (lambda: B.bayes_error([[1.0]]), "shape"),
            (lambda: B.bayes_error(None), "soft labels are missing"),
            (lambda: B.bayes_error(["a"]), "must be numbers"),
            (lambda: B.bayes_error([0.5], delta=0), "delta must be"),
        ],
    )
    def test_refusals(self, call, message):
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


class TestTemperature:
    @pytest.mark.parametrize("classes", [2, 10])
    @pytest.mark.parametrize("t", [0.25, 1.0, 6.0, 50.0])
    def test_recovers_t(self, classes, t):
        z, y = draw(20000, classes, 2.0, 3)
        for prior in (0.0, 1.0):
            assert fit_temperature(t * z, y, prior=prior) == pytest.approx(t, rel=0.04)

    @given(
        st.integers(2, 5), st.integers(0, 99), st.floats(0.3, 5), st.sampled_from([0.3, 1.0, 4.0])
    )
    def test_is_the_minimum_of_the_penalised_loss(self, classes, seed, spread, prior):
        z, y = draw(30, classes, spread, seed)
        y[:2] = 0, 1

        def penalised(log_scale):
            s = math.exp(log_scale)
            return 30 * cross_entropy(s * z, y) + prior * (s - 1 - log_scale)

        best = minimize_scalar(penalised, bounds=(-6, 6), method="bounded").x
        assert fit_temperature(z, y, prior=prior) == pytest.approx(math.exp(-best), rel=1e-3)

    def test_no_mistake_does_not_run_away(self):
        # right by a margin of 2 with n = 100: the likelihood alone wants T = 0
        y = np.arange(100) % 2
        z = 2 * np.eye(2)[y]
        assert fit_temperature(z, y, prior=0) < 0.01
        # 1/T = s where 2n/(1+e^2s) = prior·(1 − 1/s)
        s = 1 / fit_temperature(z, y)
        assert 200 / (1 + math.exp(2 * s)) == pytest.approx(1 - 1 / s, rel=1e-4)
        # where the run is nearly certain already it is left as it is
        assert fit_temperature(10 * z, y) == pytest.approx(1, abs=1e-3)

    def test_what_it_does_to_new_data_where_nothing_is_wrong(self):
        # the case: 100 validation samples without a mistake, test samples with some
        z, y = draw(20000, 2, 8.0, 4)
        few = np.flatnonzero(z.argmax(1) == y)[:100]
        plain, kept = (fit_temperature(z[few], y[few], prior=prior) for prior in (0.0, 1.0))
        test = cross_entropy(z, y)
        assert cross_entropy(z / plain, y) > 5 * test
        assert cross_entropy(z / kept, y) < 1.5 * test

    def test_bounds_are_reported(self):
        y = np.arange(8) % 2
        assert C.calibrate(*C.check_validation(2 * np.eye(2)[1 - y], y), prior=0).at_bound
        assert C.calibrate(*C.check_validation(2 * np.eye(2)[y], y), prior=0).at_bound
        assert not C.calibrate(*C.check_validation(2 * np.eye(2)[y], y)).at_bound
        assert math.isfinite(fit_temperature(np.zeros((8, 2)), y))

    def test_loss_after_is_that_of_leaving_one_out(self):
        z, y = draw(60, 3, 3.0, 5)
        losses = []
        for i in range(60):
            rest = np.arange(60) != i
            losses.append(cross_entropy(z[[i]] / fit_temperature(z[rest], y[rest]), y[[i]]))
        fit = C.calibrate(*C.check_validation(z, y))
        assert fit.after == pytest.approx(np.mean(losses), abs=1e-3)
        assert fit.before == pytest.approx(cross_entropy(z, y))
        assert fit.error == pytest.approx(np.std(losses, ddof=1) / 60**0.5, rel=0.02)

    def test_arrays_tensors_and_precisions_agree(self):
        z = torch.tensor(Z, dtype=torch.float32, requires_grad=True)
        same = fit_temperature(z.detach().numpy(), Y)
        assert fit_temperature(z, torch.tensor(Y, dtype=torch.int32)) == same
        assert fit_temperature(Z.tolist(), Y.tolist()) == pytest.approx(same, rel=1e-4)
        assert fit_temperature(z.bfloat16(), torch.tensor(Y)) == pytest.approx(same, rel=0.02)
        assert fit_temperature(Z[::-1], Y[::-1]) == pytest.approx(same, rel=1e-4)

    def test_chunks_are_of_no_account(self, monkeypatch):
        fit, top = C.calibrate(*C.check_validation(Z, Y)), C.scaled(torch.tensor(Z), 1.7)
        monkeypatch.setattr(C, "CHUNK", 14)
        assert C.calibrate(*C.check_validation(Z, Y)) == pytest.approx(fit)
        parts = C.scaled(torch.tensor(Z), 1.7)
        np.testing.assert_allclose(parts[0], softmax(Z / 1.7, 1).max(1))
        assert parts[1] == pytest.approx(top[1])

    @pytest.mark.parametrize("size", [1e4, 1e30])
    def test_huge_logits_stay_finite(self, size):
        fit = C.calibrate(*C.check_validation((size * Z).astype(np.float32), Y))
        assert all(math.isfinite(value) for value in fit)

    def test_refuses_a_negative_prior(self):
        with pytest.raises(ValueError, match="prior must be a number of at least 0"):
            fit_temperature(Z, Y, prior=-1.0)


ETAS = np.linspace(0.51, 0.999, 30)


class TestMinimiser:
    """SoftAD's conditional risk ηρ(−ln p − θ) + (1−η)ρ(−ln(1−p) − θ) over a fine grid of p."""

    grid = expit(np.linspace(-9, 9, 3601))

    def best(self, eta, theta):
        rho = [np.hypot(1, -np.log(q) - theta) for q in (self.grid, 1 - self.grid)]
        return self.grid[(eta[:, None] * rho[0] + (1 - eta[:, None]) * rho[1]).argmin(1)]

    @pytest.mark.parametrize("theta", [0.0, 0.1, 0.4, 0.6, 0.69])
    def test_below_ln_2_the_likelier_class_wins(self, theta):
        p = self.best(ETAS, theta)
        assert (p >= 0.5 - 1e-3).all()
        assert (p[(0.9 if theta == 0.69 else 0.6) < ETAS] > 0.5).all()

    def test_at_ln_2_a_half_is_best_and_above_the_wrong_class_wins(self):
        np.testing.assert_allclose(self.best(ETAS, LN2), 0.5, atol=2e-3)
        p = self.best(ETAS, 0.75)
        assert (p <= 0.5 + 1e-3).all()
        assert (p[ETAS > 0.6] < 0.499).all()

    @pytest.mark.parametrize("theta", [0.0, 0.05, 0.3, 0.62])
    def test_loss_is_that_of_the_grids_best(self, theta):
        eta = ETAS[:-1]
        p = self.best(eta, theta)
        wanted = -(eta * np.log(p) + (1 - eta) * np.log(1 - p)).mean()
        assert M.minimiser_loss(eta, theta) == pytest.approx(wanted, abs=1e-3)

    @given(
        st.lists(st.floats(0, 0.5), min_size=1, max_size=5), st.floats(0, 0.69), st.floats(0, 0.69)
    )
    def test_rises_and_stays_above_entropy_and_theta(self, eta, a, b):
        low, high = (M.minimiser_loss(eta, t) for t in sorted((a, b)))
        assert low <= high + 1e-9
        assert high >= max(a, b, binary_entropy(np.array(eta)).mean()) - 1e-9
        excess = M.excess_loss(torch.tensor(eta, dtype=torch.float64), max(a, b))
        assert excess == pytest.approx(high - binary_entropy(np.array(eta)).mean(), abs=1e-12)

    def test_by_hand(self):
        assert M.minimiser_loss([0.5], 0.3) == pytest.approx(LN2)  # by symmetry
        assert M.minimiser_loss([1.0, 0.0], 0.2) == pytest.approx(0.2)  # certain: every loss is θ
        assert M.minimiser_loss([1.0], 0.0) == pytest.approx(0, abs=1e-12)
        assert M.minimiser_loss([0.9], 0.0) > binary_entropy(0.9) + 0.05  # no proper loss
        with pytest.raises(ValueError, match=r"below 0\.69"):
            M.minimiser_loss([0.9], LN2)
        with pytest.raises(ValueError, match="probabilities"):
            M.minimiser_loss([1.5], 0.1)


class TestSuggest:
    def test_a_convention_where_nothing_is_known(self):
        for classes, theta in ((2, 0.1), (3, 0.01), (20, 0.01)):
            z, y = draw(2000, classes, 2.0, 6)
            suggestion = suggest_theta(5 * z, y)
            assert suggestion.theta == theta
            assert "label noise: none assumed" in str(suggestion)

    def test_known_noise_is_the_loss_of_a_likelier_label(self):
        z, y = draw(2000, 3, 2.0, 7)
        for rate in (0.02, 0.1, 0.3):
            suggestion = suggest_theta(8 * z, y, flip_rate=rate)
            assert suggestion.theta == pytest.approx(-math.log(1 - rate))
            assert f"{rate:g} of the labels are flipped" in str(suggestion)
        assert suggest_theta(8 * z, y, flip_rate=0.0).theta == 0.01
        p = softmax(z, 1)
        beta = 1 - p.max(1).mean()
        suggestion = suggest_theta(8 * z, y, soft_labels=p)
        assert suggestion.theta == pytest.approx(-math.log(1 - beta))
        assert suggest_theta(40 * z, y, flip_rate=0.6).theta == pytest.approx(0.9 * LN2)

    def test_break_even_by_brute_force(self):
        z, y = draw(400, 2, 2.0, 8)
        suggestion = suggest_theta(2.2 * z, y)
        p = softmax(2.2 * z / suggestion.temperature, 1)[:, 0]
        budget = suggestion.loss - max(suggestion.scaled_loss, binary_entropy(p).mean())
        thetas = np.linspace(0, 0.6, 601)
        pays = [M.minimiser_loss(p, t) - binary_entropy(p).mean() <= budget for t in thetas]
        assert suggestion.theta_high == pytest.approx(thetas[pays][-1], abs=1e-3)
        assert 0.01 < suggestion.theta == min(0.1, suggestion.theta_high)

    @given(
        st.integers(2, 6),
        st.integers(4, 60),
        st.integers(0, 10**6),
        st.floats(0.1, 6),
        st.floats(0.2, 20),
        st.one_of(st.none(), st.floats(0, 0.49)),
    )
    def test_never_costs_more_than_the_ordinary_run(self, classes, n, seed, spread, size, rate):
        z, y = draw(n, classes, spread, seed)
        y[:2] = 0, 1
        z = size * z
        s = suggest_theta(z, y, flip_rate=rate)
        assert s.loss == pytest.approx(cross_entropy(z, y), rel=1e-6)
        assert s.theta_low == 0.01
        if s.theta is None:
            assert "no θ" in s.reasons[-1]
            return
        assert 0.01 <= s.theta <= s.theta_high <= 0.9 * LN2
        assert s.predicted_loss <= s.loss + 1e-9
        p = softmax(z / s.temperature, 1)
        top = p.max(1)
        # of two classes the minimiser is exact; of more it is that of the likeliest and the rest
        rest = -xlogy(p, p).sum(1).mean() - binary_entropy(top).mean()
        assert M.minimiser_loss(top, s.theta) + rest <= s.loss + 1e-6
        if rate is None:
            assert s.theta <= (0.1 if classes == 2 else 0.01)
        else:
            assert s.theta <= max(0.01, -math.log(1 - rate)) + 1e-12

    @given(st.integers(2, 6), st.integers(0, 999), st.floats(0.2, 5))
    def test_no_noise_is_assumed_however_many_mistakes(self, classes, seed, spread):
        z, y = draw(100, classes, spread, seed)
        wrong = np.random.default_rng(seed).random(100) < 0.3
        y = np.where(wrong, (y + 1) % classes, y)
        y[:2] = 0, 1
        theta = suggest_theta(4 * z, y).theta
        assert theta is None or 0.01 <= theta <= (0.1 if classes == 2 else 0.01)

    def test_a_calibrated_run_is_kept(self):
        z, y = draw(4000, 2, 2.0, 9)
        s = suggest_theta(z, y)
        assert s.theta is None
        assert s.theta_high == 0
        assert "keep the ordinary run and divide its logits by T" in s.reasons[-1]
        # of a calibrated run the minimiser's loss is above the run's own at every θ
        assert M.minimiser_loss(softmax(z, 1)[:, 0], 0.0) > s.loss

    def test_temperature_scaling_is_reported(self):
        z, y = draw(5000, 4, 2.0, 10)
        s = suggest_theta(5 * z, y)
        assert s.temperature == pytest.approx(5, rel=0.04) == fit_temperature(5 * z, y)
        assert s.loss == pytest.approx(cross_entropy(5 * z, y))
        assert s.scaled_loss == pytest.approx(cross_entropy(z, y), abs=1e-3)
        assert s.reasons[0] == (
            f"temperature scaling alone: T = {s.temperature:.3g}, loss {s.loss:.3g} before and "
            f"{s.scaled_loss:.3g} after (leave-one-out)"
        )

    def test_says_what_makes_it_doubtful(self):
        assert "only 30 validation samples" in str(suggest_theta(4 * Z[:30], Y[:30]))
        assert "200 validation samples do not tell from nothing" in str(suggest_theta(Z, Y))
        y = np.arange(100) % 2
        assert "at its bound" in str(suggest_theta(2 * np.eye(2)[y], y, prior=0))
        assert "validation samples" not in str(suggest_theta(8 * Z, Y))

    def test_inputs_of_either_kind_and_none_is_changed(self):
        z, y = torch.tensor(Z, requires_grad=True), torch.tensor(Y, dtype=torch.int32)
        before = Z.copy()
        assert suggest_theta(z, y) == suggest_theta(Z, Y)
        np.testing.assert_array_equal(Z, before)

    def test_logarithms_of_probabilities_are_logits(self):
        scaled = suggest_theta(np.log(softmax(3 * Z, 1)), Y)
        assert scaled.theta == pytest.approx(suggest_theta(3 * Z, Y).theta)

    def test_order_of_samples_and_classes_is_of_no_account(self):
        order = np.random.default_rng(0).permutation(200)
        s, other = suggest_theta(3 * Z, Y), suggest_theta(3 * Z[order][:, ::-1] + 7, 1 - Y[order])
        assert other.theta == pytest.approx(s.theta)
        assert other.scaled_loss == pytest.approx(s.scaled_loss)

    @pytest.mark.parametrize(
        ("args", "settings", "message"),
        [
            ((Z, None), {}, "targets are missing"),
            ((None, Y), {}, "logits are missing"),
            ((Z[:, :1], Y), {}, r"a column for each class, got \(200, 1\).* 0 and z"),
            ((Z[:, 0], Y), {}, r"shape \(n, K\)"),
            ((Z, 0 * Y), {}, "all of class 0; validation needs two"),
            ((np.where(Z[3, 1] == Z, np.nan, Z), Y), {}, r"NaN or infinity in 1 places.*\[3, 1\]"),
            ((Z[:1], Y[:1]), {}, "1 validation samples; at least 2"),
            ((Z, Y[:-1]), {}, r"shape \(200,\), one per sample, got \(199,\)"),
            ((Z, Y + 1), {}, "run from 1 to 2; they must lie in 0 to 1"),
            ((Z, Y - 1), {}, "run from -1 to 0"),
            ((Z, Y * 1.0), {}, "whole numbers, got float64"),
            ((Z, Y), {"flip_rate": 0.5}, "flip_rate must be"),
            ((Z, Y), {"flip_rate": math.nan}, "flip_rate must be"),
            ((Z, Y), {"flip_rate": 0.1, "soft_labels": softmax(Z, 1)}, "give one"),
            ((Z, Y), {"soft_labels": Z}, "probabilities"),
            ((Z, Y), {"soft_labels": np.full((200, 2), 0.6)}, "row 0 sums to 1.2"),
            ((Z, Y), {"soft_labels": np.where(Z > 3, np.nan, 0.5)}, "soft labels hold NaN"),
            ((Z[:0], Y[:0]), {}, "0 validation samples"),
            ((Z, Y), {"soft_labels": np.full((5, 3), 1 / 3)}, r"\(5, 3\), logits of 2 classes"),
            ((50 * Z, Z.argmax(1)), {"soft_labels": np.full(4000, 0.4)}, "Bayes error of 0.4, but"),
        ],
    )
    def test_refusals_are_one_line(self, args, settings, message):
        with pytest.raises(ValueError, match=message) as caught:
            suggest_theta(*args, **settings)
        assert "\n" not in str(caught.value)


class TestFormerDefects:
    """What the rule before this one got wrong, each as it was found."""

    def test_errors_of_many_classes_are_no_label_noise(self):
        # errors of 10, 30 and 50 % by a network that is certain: .20, .39 and .52 before
        rng = np.random.default_rng(0)
        for error in (0.1, 0.3, 0.5):
            y = rng.integers(50, size=400)
            guess = np.where(rng.random(400) < error, (y + 1) % 50, y)
            z = 12 * np.eye(50)[guess] + rng.standard_normal((400, 50))
            assert suggest_theta(z, y).theta == 0.01

    def test_the_price_is_that_of_the_returned_theta(self):
        # K = 2, logits twice too large: .238 before, at a loss of .506 against the run's .492
        z, y = draw(4000, 2, 2.0, 1)
        s = suggest_theta(2 * z, y)
        p = softmax(2 * z / s.temperature, 1)[:, 0]
        assert s.theta is not None
        assert M.minimiser_loss(p, s.theta) <= cross_entropy(2 * z, y)

    @pytest.mark.parametrize("classes", [2, 10, 100])
    def test_a_network_that_guesses_is_told_so(self, classes):
        torch.manual_seed(classes)
        s = suggest_theta(torch.randn(500, classes), torch.randint(classes, (500,)))
        assert s.theta is None
        assert "the network guesses" in str(s)

    def test_no_flip_rate_drives_theta_to_the_cliff(self):
        # 12 % of ten classes gave .6238 before
        rng = np.random.default_rng(1)
        clean = rng.integers(10, size=1000)
        y = np.where(rng.random(1000) < 0.2, (clean + 1) % 10, clean)
        s = suggest_theta(9 * np.eye(10)[clean], y, flip_rate=0.2)
        assert s.theta == pytest.approx(-math.log(0.8))

    def test_no_certificate(self):
        assert not hasattr(T, "certificate")
        assert not hasattr(suggest_theta(Z, Y), "certificate")

    @pytest.mark.parametrize("classes", [2, 10, 1000])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_probabilities_are_refused_in_every_precision(self, classes, dtype):
        torch.manual_seed(0)
        p = torch.softmax(2 * torch.randn(100, classes), 1).to(dtype)
        y = torch.arange(100) % classes
        with pytest.raises(ValueError, match=r"are probabilities, .*; pass the logits"):
            suggest_theta(p, y)
        if dtype == torch.float16:
            with pytest.raises(ValueError, match="logits are probabilities"):
                suggest_theta(p.numpy(), y)

    def test_few_samples_are_remarked_upon(self):
        s = suggest_theta([[2.0, 0.0], [0.0, 2.0]], [0, 1])
        assert "only 2 validation samples" in str(s)

    def test_large_logits_stay_within_memory(self):
        # a fifth of 50,000 × 1,000; the logits themselves are 40 MB
        code = (
            "import resource, torch\n"
            "from softadlib import suggest_theta\n"
            "z, y = torch.randn(10000, 1000), torch.randint(1000, (10000,))\n"
            "suggest_theta(z[:100], y[:100])\n"
            "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "suggest_theta(3 * z, y)\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
        )
        grown = int(subprocess.check_output([sys.executable, "-c", code], text=True))
        unit = 1024 if sys.platform.startswith("linux") else 1
        assert grown * unit < 500e6
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64, bool])
def test_logits_that_are_whole_numbers_are_numbers(dtype):
    rng = np.random.default_rng(0)
    logits = rng.integers(0, 2, (40, 3)).astype(dtype) * (1 if dtype is bool else 7)
    targets = np.arange(40) % 3
    assert fit_temperature(logits, targets) == fit_temperature(logits.astype(float), targets)


def test_unsigned_targets_are_class_indices():
    logits = np.random.default_rng(0).normal(size=(40, 3))
    targets = np.arange(40) % 3
    expected = suggest_theta(logits, targets)
    for dtype in (np.uint8, np.uint16, np.uint32, np.uint64):
        assert suggest_theta(logits, targets.astype(dtype)) == expected


@pytest.mark.parametrize(
    "logits",
    [
        torch.zeros(4, 2, dtype=torch.complex64),
        np.zeros((4, 2), dtype=np.longdouble),
        torch.eye(4)[:, :2].to_sparse(),
        [torch.zeros(2, requires_grad=True)] * 4,
        [[0.0, 1.0], [1.0]],
    ],
    ids=["complex", "longdouble", "sparse", "gradients", "ragged"],
)
def test_what_is_no_matrix_of_numbers_is_refused(logits):
    with pytest.raises(ValueError, match=r"logits must be|inhomogeneous"):
        suggest_theta(logits, [0, 1, 0, 1])


@pytest.mark.parametrize(
    ("logits", "bins", "words"),
    [
        ([0.0, 1.0], 15, r"logits must have shape \(n, K\)"),
        (np.zeros((2, 2, 2)), 15, r"logits must have shape \(n, K\)"),
        (np.zeros((0, 2)), 15, "logits of 0 samples"),
        (np.zeros((2, 2)), 2.5, "bins must be a whole number of at least 1, got 2.5"),
    ],
)
def test_bad_input_of_the_calibration_error_is_refused(logits, bins, words):
    with pytest.raises(ValueError, match=words):
        C.expected_calibration_error(logits, [0, 1][: len(logits)], bins=bins)
