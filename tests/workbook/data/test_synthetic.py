"""The data, redrawn from their definitions, and what `Splits` refuses."""

import numpy as np
import pytest
import torch

from softadlib._validation import UserError
from softadlib.trainer.splits import PARTS, Splits, from_arrays
from softadlib.workbook.data.make_splits import synthetic_splits
from softadlib.workbook.data.synthetic import SYNTHETIC, gaussian, sinusoid, spiral

SEED = 17716


def rng(seed=SEED):
    return np.random.default_rng(seed)


# The three problems. N(m, vI) drawn at a seed is m + √v times the seed's standard normals.


@pytest.mark.parametrize("make", SYNTHETIC.values(), ids=SYNTHETIC)
def test_types_and_shapes(make):
    x, y = make(60, 0.1, rng())
    assert (x.shape, x.dtype) == ((60, 2), np.float32)
    assert (y.shape, y.dtype) == ((60,), np.int64)


def test_gaussian_classes_lie_around_0_0_and_1_1_with_variance_a_tenth():
    x, y = gaussian(100, 0.0, rng())
    assert y.tolist() == [0] * 50 + [1] * 50
    noise = np.sqrt(0.1) * rng().standard_normal((100, 2))
    np.testing.assert_allclose(x, noise + y[:, None], atol=1e-6)


def test_sinusoid_labels_and_draws():
    x, y = sinusoid(2000, 0.0, rng())
    np.testing.assert_allclose(x, rng().standard_normal((2000, 2)), atol=1e-6)
    a, b = x.astype(float).T
    score = a + b + np.sin(-a + b)
    clear = np.abs(score) > 1e-5  # nearer than that float32 may decide otherwise
    assert clear.sum() > 1990
    assert np.array_equal(y[clear], np.where(score > 0, 1, 0)[clear])
    assert 0.45 < y.mean() < 0.55


def test_spiral_arms():
    n = 400
    x, y = spiral(n, 0.0, rng())
    assert y.tolist() == [1] * 200 + [0] * 200
    r = np.arange(200) * (4 * np.pi / 199)
    arm = np.exp(1j * r)
    means = np.concatenate([r * arm, (r + np.pi) * arm])
    noise = x - np.column_stack([means.real, means.imag])
    np.testing.assert_allclose(noise, rng().standard_normal((n, 2)), atol=1e-5)
    np.testing.assert_allclose(means[[0, 199, 200]], [0, 4 * np.pi, np.pi], atol=1e-9)


# Label noise


@pytest.mark.parametrize(
    ("noise", "flips"), [(0.0, 0), (0.05, 5), (0.1, 10), (0.29, 28), (0.999, 99), (1.0, 100)]
)
@pytest.mark.parametrize("name", ["sinusoid", "spiral"])
def test_exactly_int_nq_labels_flip(name, noise, flips):
    clean, noisy = (SYNTHETIC[name](100, q, rng()) for q in (0.0, noise))
    assert np.array_equal(clean[0], noisy[0])
    assert (clean[1] != noisy[1]).sum() == flips
    assert set(noisy[1].tolist()) <= {0, 1}


@pytest.mark.parametrize(("noise", "flips"), [(0.05, 2), (0.1, 5), (0.29, 14), (1.0, 50)])
def test_gaussian_flips_are_counted_per_class(noise, flips):
    _, y = gaussian(100, noise, rng())
    assert y[:50].sum() == flips
    assert (1 - y[50:]).sum() == flips


# Splits


def data(seeds=(1, 2), sizes=(20, 10, 30), noise=0.0, name="gaussian"):
    return synthetic_splits(name, seeds, noise, sizes)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_trials_depend_on_their_seed_alone_and_train_and_val_not_on_n_test(name):
    both, again = data(name=name), data(name=name)
    other = data(seeds=(2,), sizes=(20, 10, 400), name=name)
    for part, n in zip(PARTS, (20, 10, 30)):
        for a, b in zip(both.part(part, 1), again.part(part, 1)):
            assert torch.equal(a, b)
            assert len(a) == n
        if part != "test":
            for a, b in zip(both.part(part, 1), other.part(part, 0)):
                assert torch.equal(a, b)
        assert not torch.equal(both.part(part, 0)[0], both.part(part, 1)[0])


def test_parts_are_drawn_train_val_test_from_one_generator():
    both, source = data(noise=0.2, name="sinusoid"), rng(2)
    for part, n in zip(PARTS, (20, 10, 30)):
        x, y = sinusoid(n, 0.2, source)
        assert torch.equal(both.part(part, 1)[0], torch.from_numpy(x))
        assert torch.equal(both.part(part, 1)[1], torch.from_numpy(y))


def test_to_converts_inputs_and_keeps_the_rest():
    wide = data().to("cpu", torch.float64)
    assert wide.x.dtype == torch.float64
    assert wide.y.dtype == torch.int64
    assert torch.equal(wide.x.float(), data().x)
    images = Splits(torch.zeros(4, 3, dtype=torch.uint8), *rest(4), classes=2)
    assert images.to("cpu", torch.float64).x.dtype == torch.uint8


def rest(n):
    index = torch.arange(n)[None]
    return torch.zeros(n, dtype=torch.int64), index, index, index


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_infinity_are_refused_naming_the_sample(bad):
    x = torch.zeros(5, 2, 2)
    x[3, 1, 0] = x[4, 0, 0] = x[4, 1, 1] = bad
    message = "NaN or infinity in 2 of 5 samples, first at sample 3"
    with pytest.raises(UserError, match=message):
        Splits(x, *rest(5), classes=2)


@pytest.mark.parametrize(("label", "seen"), [(2, "0 to 2"), (-1, "-1 to 0")])
def test_wrong_labels_are_refused_with_their_range(label, seen):
    y, *index = rest(4)
    y[2] = label
    with pytest.raises(UserError, match=f"labels run from {seen}; they must lie in 0 to 1"):
        Splits(torch.zeros(4, 2), y, *index, classes=2)


def test_unequal_lengths_are_refused():
    with pytest.raises(UserError, match="5 samples but 4 labels"):
        Splits(torch.zeros(5, 2), *rest(4), classes=2)


@pytest.mark.parametrize("part", PARTS)
def test_empty_parts_are_refused_by_name(part):
    full, none = sinusoid(4, 0.0, rng()), sinusoid(0, 0.0, rng())
    trial = dict.fromkeys(PARTS, full) | {part: none}
    with pytest.raises(UserError, match=f"the {part} part is empty"):
        from_arrays([trial], classes=2)
