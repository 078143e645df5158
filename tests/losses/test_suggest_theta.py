"""θ without a grid: closed forms, numbers by hand and brute force against bounds, estimators, the rule."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softadlib import functional as F
from softadlib.losses.threshold import bayes as B
from softadlib.losses.threshold import calibration as C
from softadlib.losses.threshold import suggest as T
from softadlib.losses.threshold.suggest import certificate, suggest_theta, temperature_scale

LN2 = math.log(2)
rates = st.floats(0, 0.5)


def entropy_of(p):
    """−Σ p ln p along the last axis, zeros left out."""
    return -np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0), -1)


def draw(n, classes, spread, seed, flip=0.0):
    """Logits and labels drawn from them, or from their likeliest class flipped at a rate."""
    rng = np.random.default_rng(seed)
    z = spread * rng.standard_normal((n, classes))
    if flip:
        y = (z.argmax(1) + (rng.random(n) < flip) * rng.integers(1, classes, n)) % classes
    else:
        y = (z + rng.gumbel(size=z.shape)).argmax(1)
    return z, y


Z, Y = draw(200, 2, 2.0, 0)


class TestPsi:
    def test_by_hand(self):
        assert B.psi(0.0) == 0
        assert B.psi(1.0) == pytest.approx(LN2)
        assert B.psi(-1.0) == pytest.approx(LN2)
        assert B.psi(0.5) == pytest.approx((1.5 * math.log(1.5) + 0.5 * math.log(0.5)) / 2)
        np.testing.assert_allclose(B.psi(np.array([0.0, 1.0])), [0, LN2])

    @given(st.floats(-1, 1))
    def test_even_convex_and_above_half_the_square(self, t):
        assert B.psi(t) == pytest.approx(B.psi(-t), abs=1e-15)
        assert B.psi(t) >= t**2 / 2 - 1e-15
        assert B.psi(t / 2) <= B.psi(t) / 2 + 1e-15

    @given(st.floats(1e-6, 1), st.integers(2, 6), st.integers(0, 999))
    def test_least_excess_risk_of_a_wrong_prediction(self, t, classes, seed):
        # at η the classifier p errs by δ = η_j* − η_j only if p_j ≥ p_j*; then KL(η‖p) ≥ ψ(δ)
        rng = np.random.default_rng(seed)
        eta, p = rng.dirichlet(np.ones(classes), 2)
        best, chosen = eta.argmax(), p.argmax()
        excess = (eta * np.log(eta / p)).sum()
        assert excess >= B.psi(eta[best] - eta[chosen]) - 1e-12
        # two classes, p at a half: nothing is lost
        half = LN2 - B.entropy((1 + t) / 2)
        assert half == pytest.approx(B.psi(t), abs=1e-12)

    def test_small_arguments_keep_their_digits(self):
        assert B.psi(1e-7) == pytest.approx(0.5e-14, rel=1e-2)
        with pytest.raises(ValueError, match="-1 to 1"):
            B.psi(1.1)


class TestRisk:
    @given(st.integers(2, 8), st.integers(0, 999), st.floats(0.1, 5))
    def test_every_posterior_lies_in_the_bracket(self, classes, seed, sharp):
        p = np.random.default_rng(seed).dirichlet(np.full(classes, 1 / sharp), 50)
        beta, risk = (1 - p.max(1)).mean(), entropy_of(p).mean()
        low, high = B.risk_bracket(beta, classes)
        assert low - 1e-12 <= risk <= high + 1e-12

    def test_both_ends_are_reached(self):
        # a share of coins, the others certain; and every sample alike, the rest shared out evenly
        assert B.risk_bracket(0.15)[0] == pytest.approx(0.3 * LN2)
        p = np.array([0.7, 0.1, 0.1, 0.1])
        assert B.risk_bracket(0.3, 4)[1] == pytest.approx(entropy_of(p))
        assert B.risk_bracket(0.75, 4)[1] == pytest.approx(math.log(4))

    def test_the_papers_sets(self):
        # β*, R* by quadrature: two Gaussians, and the spirals
        for beta, risk in ((0.0127, 0.0344), (0.094, 0.234), (0.176, 0.435)):
            low, high = B.risk_bracket(beta)
            assert low < risk < high
        assert B.flip_risk(0.05) == pytest.approx(0.1985, abs=1e-4)
        assert B.flip_risk(0.1) == pytest.approx(0.3251, abs=1e-4)

    def test_refusals(self):
        with pytest.raises(ValueError, match=r"beta must be at least 0 and at most 0.5, got 0.6"):
            B.risk_bracket(0.6)
        with pytest.raises(ValueError, match="flip_rate"):
            B.flip_risk(-0.1, 3)
        with pytest.raises(ValueError, match="flip_rate"):
            B.flip_risk(math.nan)

    @given(st.integers(2, 20), st.floats(0, 1))
    def test_neighbour_inverts_cover_and_hart(self, classes, share):
        beta = share * (1 - 1 / classes)
        error = beta * (2 - classes / (classes - 1) * beta)
        # at guessing the root is flat, and rounding of the error shows as its square root
        assert B.neighbour_bayes(min(error, 1), classes) == pytest.approx(beta, abs=1e-7)
        assert error / 2 - 1e-7 <= B.neighbour_bayes(min(error, 1), classes) <= error + 1e-7

    def test_neighbour_by_hand(self):
        # coins of 0.2: two draws differ with probability 2·0.2·0.8
        assert B.neighbour_bayes(0.32) == pytest.approx(0.2)
        assert B.neighbour_bayes(0.9) == 0.5


class TestBayesError:
    def test_by_hand(self):
        found = B.bayes_error([0.1, 0.6, 1.0, 0.5], delta=0.05)
        assert found.value == pytest.approx((0.1 + 0.4 + 0 + 0.5) / 4)
        half = math.sqrt(math.log(2 / 0.05) / (8 * 4))
        assert found.high == min(0.5, found.value + half)
        assert found.low == max(0, found.value - half)

    def test_many_classes(self):
        soft = torch.tensor([[0.5, 0.3, 0.2], [0.0, 0.0, 1.0]])
        found = B.bayes_error(soft)
        assert found.value == pytest.approx(0.25)
        wide = B.bayes_error(soft.repeat(5000, 1))
        assert wide.high - wide.value == pytest.approx(2 / 3 * math.sqrt(math.log(40) / 20000))

    def test_interval_covers(self):
        rng = np.random.default_rng(0)
        c = rng.beta(0.5, 0.5, (400, 60))
        truth = 0.5 - 1 / math.pi  # E min(c, 1−c) under the arcsine law
        held = [i.low <= truth <= i.high for i in map(B.bayes_error, c)]
        assert np.mean(held) >= 0.95
        assert np.mean([B.bayes_error(row).value for row in c]) == pytest.approx(truth, abs=0.005)

    def test_positive_only_agrees_with_all(self):
        rng = np.random.default_rng(1)
        c = rng.beta(1, 2, 200000)  # P(+) = 1/3
        positive = c[rng.random(len(c)) < c]
        found = B.bayes_error_positive(positive, 1 / 3)
        assert found.value == pytest.approx(np.minimum(c, 1 - c).mean(), abs=0.003)
        assert B.bayes_error_positive([1.0, 0.4], 0.5).value == pytest.approx(0.25)

    def test_calibration_mends_a_distortion(self):
        rng = np.random.default_rng(2)
        c = rng.random(20000)
        y = (rng.random(20000) < c).astype(int)
        raw, mended = B.bayes_error(c**3), B.bayes_error(c**3, y)
        assert raw.value == pytest.approx(0.1566, abs=0.01)  # E min(c³, 1−c³)
        assert mended.value == pytest.approx(0.25, abs=0.01)

    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=1, max_size=12))
    def test_isotonic_by_the_minimax_formula(self, pairs):
        s, y = (np.array(v) for v in zip(*pairs))
        values = np.unique(s)
        mean = lambda a, b: y[(s >= a) & (s <= b)].mean()  # noqa: E731
        best = {
            v: max(min(mean(a, b) for b in values[values >= v]) for a in values[values <= v])
            for v in values
        }
        np.testing.assert_allclose(B.isotonic(s, y), [best[v] for v in s])

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
            (lambda: B.bayes_error([0.5], delta=0), "delta must be above 0"),
            (lambda: B.bayes_error([0.5, 0.5], [0, 1, 1]), r"targets must have shape \(2,\)"),
            (lambda: B.bayes_error(np.full((2, 3), 1 / 3), [0, 1]), "two classes, got 3"),
            (lambda: B.bayes_error_positive([0.0], 0.5), "above 0"),
            (lambda: B.isotonic([], []), "scores must have shape"),
        ],
    )
    def test_refusals(self, call, message):
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


class TestTemperature:
    @pytest.mark.parametrize("classes", [2, 10])
    @pytest.mark.parametrize("t", [0.25, 1.0, 6.0])
    def test_recovers_t(self, classes, t):
        z, y = draw(20000, classes, 2.0, 3)
        assert temperature_scale(t * z, y) == pytest.approx(t, rel=0.04)

    def test_is_the_minimum_of_the_smoothed_loss(self):
        z, y = draw(60, 3, 3.0, 4)
        t, doubt = temperature_scale(z, y), 1 / 62

        def smoothed(t):
            logp = np.log(C.softmax(z / t))
            own = logp[np.arange(60), y]
            return -((1 - doubt) * own + doubt * (logp.sum(1) - own) / 2).mean()

        grid = np.geomspace(t / 3, 3 * t, 4001)
        assert smoothed(t) <= min(map(smoothed, grid)) + 1e-12

    @pytest.mark.parametrize("size", [1e-2, 1.0, 1e3])
    def test_separated_classes_stay_in_doubt(self, size):
        # n samples right by the same margin: the scaled mistake is the smoothing, 1/(n+2)
        y = np.arange(8) % 2
        z = size * np.eye(2)[y]
        p = C.softmax(z / temperature_scale(z, y))
        wanted = 0.9 if size > 0.1 else 1 / (1 + math.exp(-50 * size))
        if size < 1e2:
            np.testing.assert_allclose(p.max(1), wanted, rtol=1e-6)
        assert temperature_scale(z, y) >= 0.02

    def test_wrong_everywhere_is_as_flat_as_it_may_be(self):
        y = np.arange(8) % 2
        assert temperature_scale(np.eye(2)[1 - y], y) == pytest.approx(20)
        assert np.isfinite(temperature_scale(np.zeros((8, 2)), y))

    def test_arrays_and_tensors_agree(self):
        z = torch.tensor(Z, dtype=torch.float32, requires_grad=True)
        same = temperature_scale(z.detach().numpy(), Y)
        assert temperature_scale(z, torch.tensor(Y)) == same
        assert temperature_scale(z.bfloat16(), torch.tensor(Y)) == pytest.approx(same, rel=0.02)


ETAS = np.linspace(0.51, 0.999, 30)


class TestCliff:
    """SoftAD's conditional risk ηρ(−ln p − θ) + (1−η)ρ(−ln(1−p) − θ) over a fine grid of p."""

    grid = 1 / (1 + np.exp(-np.linspace(-9, 9, 3601)))

    def risk(self, eta, theta):
        rho = [F.rho(torch.tensor(-np.log(q) - theta)).numpy() for q in (self.grid, 1 - self.grid)]
        return eta[:, None] * rho[0] + (1 - eta[:, None]) * rho[1]

    @pytest.mark.parametrize("theta", [0.0, 0.1, 0.4, 0.6, 0.69])
    def test_below_ln_2_the_likelier_class_wins(self, theta):
        p = self.grid[self.risk(ETAS, theta).argmin(1)]
        assert (p >= 0.5 - 1e-3).all()
        assert (p[(0.9 if theta == 0.69 else 0.6) < ETAS] > 0.5).all()

    def test_at_ln_2_a_half_is_best_and_above_the_wrong_class_wins(self):
        np.testing.assert_allclose(self.grid[self.risk(ETAS, LN2).argmin(1)], 0.5, atol=2e-3)
        p = self.grid[self.risk(ETAS, 0.75).argmin(1)]
        assert (p <= 0.5 + 1e-3).all()
        assert (p[ETAS > 0.6] < 0.499).all()

    @pytest.mark.parametrize("theta", [0.0, 0.05, 0.3, 0.62])
    def test_held_loss_is_that_of_the_minimiser(self, theta):
        p = self.grid[self.risk(ETAS[:-1], theta).argmin(1)]
        wanted = -(ETAS[:-1] * np.log(p) + (1 - ETAS[:-1]) * np.log(1 - p)).mean()
        assert C.minimiser_loss(ETAS[:-1], theta) == pytest.approx(wanted, abs=1e-3)

    @given(st.lists(rates, min_size=1, max_size=5), st.floats(0, 0.69), st.floats(0, 0.69))
    def test_held_loss_rises_and_stays_above_entropy_and_theta(self, eta, a, b):
        low, high = (C.minimiser_loss(eta, t) for t in sorted((a, b)))
        assert low <= high + 1e-9
        assert high >= max(a, b, B.entropy(np.array(eta)).mean()) - 1e-9

    def test_held_loss_by_hand(self):
        assert C.minimiser_loss([0.5], 0.3) == pytest.approx(LN2)  # by symmetry
        assert C.minimiser_loss([1.0, 0.0], 0.2) == pytest.approx(0.2)  # certain: every loss is θ
        assert C.minimiser_loss([1.0], 0.0) == pytest.approx(0, abs=1e-12)
        assert C.minimiser_loss([0.9], 0.0) > B.entropy(0.9) + 0.05  # no proper loss, even at 0
        with pytest.raises(ValueError, match=r"below 0\.69"):
            C.minimiser_loss([0.9], LN2)
        with pytest.raises(ValueError, match="probabilities"):
            C.minimiser_loss([1.5], 0.1)


class TestCertificate:
    def test_by_hand(self):
        # θ = 0: ρ(0) = 0; ρ(ln 2) in the denominator; a loss of 1 counts 1
        losses, n = [0.0, 0.3, 1.0, 0.0], 4
        ratio = (math.hypot(1, 0.3) - 1) / (math.hypot(1, LN2) - 1)
        wanted = (ratio + 1) / 4 + math.sqrt(math.log(1 / 0.5) / (2 * n))
        assert certificate(losses, 0.0, delta=0.5) == pytest.approx(wanted)

    @given(st.lists(st.floats(0, 5), min_size=1, max_size=20), st.floats(0, 0.69))
    def test_never_below_the_share_of_mistakes(self, losses, theta):
        mistakes = np.mean(np.array(losses) >= LN2)
        loose = math.sqrt(math.log(20) / (2 * len(losses)))
        assert certificate(losses, theta) >= min(1, mistakes + loose) - 1e-12

    def test_holds_on_simulated_data(self):
        z, y = draw(60000, 2, 3.0, 5)
        losses, truth = C.cross_entropy_at(z, y), (z.argmax(1) != y).mean()
        bounds = [certificate(part, 0.1, delta=0.1) for part in losses.reshape(-1, 100)]
        assert np.mean(np.array(bounds) >= truth) >= 0.9
        assert certificate(losses, 0.1) < 3 * truth  # and it is not idle

    def test_refusals(self):
        for losses, theta, message in (
            ([0.1], 0.7, "theta must be at least -inf and below"),
            ([-0.1], 0.1, "at least 0"),
            ([], 0.1, "at least 0"),
            ([math.inf], 0.1, "infinity"),
        ):
            with pytest.raises(ValueError, match=message):
                certificate(losses, theta)


class TestSuggest:
    def test_the_formula(self):
        s = suggest_theta(Z, Y, lower="neighbour")
        wanted = math.sqrt(s.theta_low * s.theta_high) + B.psi(s.margin) / s.margin * 0.01
        assert s.theta == pytest.approx(wanted)
        wrong = (Z.argmax(1) != Y).sum()
        beta = (1 - math.sqrt(1 - 2 * (wrong + 1) / 202)) / 2
        assert s.beta == pytest.approx(beta)
        assert s.theta_low == pytest.approx(2 * LN2 * beta)
        assert suggest_theta(Z, Y, drop=0.0, lower="neighbour").theta == pytest.approx(
            math.sqrt(s.theta_low * s.theta_high)
        )
        assert s.certificate == certificate(C.cross_entropy_at(Z, Y), s.theta)
        assert s.certify(torch.zeros(9)) == certificate(np.zeros(9), s.theta)

    def test_says_why(self):
        lines = str(suggest_theta(Z, Y)).splitlines()
        assert [line.split(" ")[0] for line in lines] == ["θ_high", "θ_low", "θ", "certificate:"]

    def test_inputs_of_either_kind_and_none_is_changed(self):
        z, y = torch.tensor(Z, requires_grad=True), torch.tensor(Y, dtype=torch.int32)
        before = Z.copy()
        assert suggest_theta(z, y) == suggest_theta(Z, Y)
        np.testing.assert_array_equal(Z, before)

    def test_a_known_flip_rate_is_the_risk(self):
        z, y = draw(4000, 3, 1.0, 6, flip=0.1)
        s = suggest_theta(20 * np.eye(3)[z.argmax(1)], y, flip_rate=0.1)
        risk = B.flip_risk(0.1, 3)  # the network knows all but the flips
        assert s.theta_high == pytest.approx(risk, rel=0.05)
        assert s.theta_low == min(risk, s.theta_high)
        assert suggest_theta(z, y, flip_rate=0.02).theta_low == B.flip_risk(0.02, 3)

    def test_theta_high_undoes_overconfidence(self):
        z, y = draw(5000, 2, 2.0, 7)
        wanted = C.cross_entropy_at(z, y).mean()  # of the posterior that drew the labels
        assert wanted == pytest.approx(entropy_of(C.softmax(z)).mean(), abs=4 * 0.6 / 5000**0.5)
        assert suggest_theta(5 * z, y).theta_high == pytest.approx(wanted, rel=0.01)

    def test_memorising_is_what_overconfidence_costs(self):
        z, y = draw(3000, 2, 2.0, 8)
        calm, loud = suggest_theta(z, y), suggest_theta(8 * z, y)
        assert calm.memorised < 0.01
        assert loud.memorised == pytest.approx(
            C.cross_entropy_at(8 * z, y).mean() - C.cross_entropy_at(z, y).mean(), rel=0.05
        )
        # nothing was memorised: SoftAD would cost more than it can save, so θ_low is the floor
        assert calm.theta_low == T.FLOOR
        assert loud.theta_low == suggest_theta(z, y, lower="neighbour").theta_low > 0.1
        assert loud.theta > 2 * calm.theta

    def test_logarithms_of_probabilities_are_logits(self):
        same = suggest_theta(np.log(C.softmax(Z)), Y)
        assert same.theta == pytest.approx(suggest_theta(Z, Y).theta)

    def test_in_between_the_price_is_what_was_lost(self):
        z, y = draw(3000, 2, 2.0, 9)
        s = suggest_theta(1.9 * z, y)
        assert T.FLOOR < s.theta_low < suggest_theta(1.9 * z, y, lower="neighbour").theta_low
        p = C.softmax(1.9 * z / s.temperature).max(1)
        price = C.minimiser_loss(p, s.theta_low) - B.entropy(p).mean()
        assert price == pytest.approx(s.memorised, abs=1e-4)

    def test_epochs_take_the_best_and_do_not_reward_the_search(self):
        z, y = draw(400, 2, 2.0, 10)
        plain = suggest_theta(z, y).theta_high
        worse = np.stack([0 * z, z, -z])
        assert suggest_theta(z, y, epochs=worse).theta_high == pytest.approx(plain, rel=1e-9)
        losses = np.stack([C.cross_entropy_at(z, y), np.full(400, 0.6)])
        assert suggest_theta(z, y, epochs=losses).theta_high == pytest.approx(
            losses[0].mean(), rel=0.02
        )
        assert suggest_theta(z, y, epochs=[0.5, 0.3, 0.4]).theta_high == pytest.approx(0.3)
        # 300 epochs of pure noise about ½: the least mean is far below it, the honest score is not
        noise = np.random.default_rng(0).exponential(0.5, (300, 400))
        assert noise.mean(1).min() < 0.44
        assert suggest_theta(z, y, epochs=noise).theta_high == pytest.approx(0.5, abs=0.02)

    @given(st.integers(2, 5), st.integers(0, 200), st.floats(0, 4), st.sampled_from(T.LOWER))
    def test_always_ordered_and_below_the_cliff(self, classes, seed, spread, lower):
        z, y = draw(40, classes, spread, seed)
        y[:2] = 0, 1
        s = suggest_theta(z, y, lower=lower)
        assert 0 < s.theta_low <= s.theta_high <= 0.9 * LN2
        assert s.theta_low <= s.theta <= 0.9 * LN2
        assert 0 < s.certificate <= 1

    def test_order_of_samples_and_classes_hardly_matters(self):
        z, y = draw(2000, 2, 2.0, 11)
        by_class = np.argsort(y, kind="stable")
        one, other = suggest_theta(z, y), suggest_theta(z[by_class][:, ::-1], 1 - y[by_class])
        assert one.theta == pytest.approx(other.theta, rel=0.05)
        assert suggest_theta(z + 7, y).theta == pytest.approx(one.theta)

    def test_soft_labels(self):
        p = C.softmax(Z)
        s = suggest_theta(Z, Y, soft_labels=p)
        assert s.beta == pytest.approx((1 - p.max(1)).mean())
        assert s.theta_low == pytest.approx(2 * LN2 * s.beta)
        z, y = draw(4000, 2, 50.0, 12)
        with pytest.raises(ValueError, match=r"soft labels claim a Bayes error of 0.4, but"):
            suggest_theta(z, y, soft_labels=np.full(4000, 0.4))

    def test_fewest_samples_and_no_mistake(self):
        s = suggest_theta([[2.0, 0.0], [0.0, 2.0]], [0, 1])
        assert 0 < s.theta < LN2
        z, y = draw(1000, 2, 1.0, 13, flip=1e-9)
        sure = suggest_theta(1e4 * z, y, lower="neighbour")
        assert sure.theta_low == sure.theta_high < T.FLOOR
        assert sure.theta_high <= sure.theta < T.FLOOR
        assert "set to it" in str(sure)

    @pytest.mark.parametrize(
        ("args", "settings", "message"),
        [
            ((Z, None), {}, "targets are missing"),
            ((None, Y), {}, "logits are missing"),
            ((Z[:, :1], Y), {}, r"a column for each class, got \(200, 1\)"),
            ((Z[:, 0], Y), {}, r"shape \(n, K\)"),
            ((Z, 0 * Y), {}, "all of class 0; validation needs two"),
            ((np.where(Z[3, 1] == Z, np.nan, Z), Y), {}, r"NaN or infinity in 1 places.*\[3, 1\]"),
            ((C.softmax(Z), Y), {}, "logits are probabilities, .*; pass their logarithms"),
            ((Z[:1], Y[:1]), {}, "1 validation samples; at least 2"),
            ((Z, Y[:-1]), {}, r"shape \(200,\), one per sample, got \(199,\)"),
            ((Z, Y + 1), {}, "run from 1 to 2; they must lie in 0 to 1"),
            ((Z, Y - 1), {}, "run from -1 to 0"),
            ((Z, Y * 1.0), {}, "whole numbers, got float64"),
            ((Z, Y), {"drop": -0.1}, "drop must be at least 0"),
            ((Z, Y), {"kappa": 1.0}, "kappa must be above 0 and below 1"),
            ((Z, Y), {"flip_rate": 0.6}, "flip_rate must be"),
            ((Z, Y), {"lower": "best"}, "balanced, neighbour, floor"),
            ((Z, Y), {"epochs": Z}, r"epochs must have shape \(E, 200, 2\), \(E, 200\)"),
            ((Z, Y), {"epochs": -np.ones(3)}, "cross-entropies"),
            ((Z, Y), {"epochs": []}, "epochs must have shape"),
            ((Z, Y), {"soft_labels": Z}, "probabilities"),
            (
                (Z, Y),
                {"soft_labels": np.full((200, 2), 0.6)},
                "sum to one in every row; row 0 sums to 1.2",
            ),
            ((Z, Y), {"soft_labels": np.where(Z > 3, np.nan, 0.5)}, "soft labels hold NaN"),
            ((Z[:0], Y[:0]), {}, "0 validation samples"),
            (
                (Z, Y),
                {"soft_labels": np.full((5, 3), 1 / 3)},
                r"shape \(5, 3\), logits of 2 classes",
            ),
        ],
    )
    def test_refusals_are_one_line(self, args, settings, message):
        with pytest.raises(ValueError, match=message) as caught:
            suggest_theta(*args, **settings)
        assert "\n" not in str(caught.value)
