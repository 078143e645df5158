"""Numbers from users: taken in every form that is one, refused in one line that names them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softadlib._validation import UserError, choose, counted, real, whole


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(-5, 5))
def test_real_takes_exactly_what_lies_within_its_bounds(value, a, b):
    low, high = sorted((a, b))
    for bounds, inside in (
        ({"low": low, "high": high}, low <= value <= high),
        ({"above": low, "below": high}, low < value < high),
    ):
        if inside:
            assert real("x", value, **bounds) == value
        else:
            with pytest.raises(UserError, match=r"^x must be a number "):
                real("x", value, **bounds)


@pytest.mark.parametrize("make", [float, np.float64, np.float32, torch.tensor, np.array])
def test_real_takes_every_kind_of_number(make):
    assert real("x", make(0.25)) == 0.25


BAD = [
    math.nan,
    math.inf,
    "1",
    b"1",
    True,
    np.bool_(True),
    torch.tensor(True),
    None,
    [1.0],
    1j,
    10**400,
]


@pytest.mark.parametrize("bad", [*BAD, torch.ones(2), np.ones(2)], ids=repr)
def test_real_refuses_the_rest_in_one_line(bad):
    with pytest.raises(UserError, match=r"^x must be a finite number, got ") as error:
        real("x", bad)
    assert "\n" not in str(error.value)


def test_a_parameter_is_told_that_it_cannot_be_learned():
    with pytest.raises(UserError, match=r"theta cannot be learned: pass its value, theta.item"):
        real("theta", torch.nn.Parameter(torch.tensor(0.1)))


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"above": 0}, "a number above 0, got -1"),
        ({"low": 0, "below": 1}, "a number of at least 0 and below 1, got -1"),
        ({"low": 0, "high": 1}, "a number of at least 0 and at most 1, got -1"),
        ({"high": -2}, "a number at most -2, got -1"),
    ],
)
def test_real_says_the_range(bounds, words):
    with pytest.raises(UserError, match=f"^x must be {words}$"):
        real("x", -1, **bounds)


@given(st.integers(-9, 9), st.integers(-9, 9))
def test_whole_takes_integers_from_low_on(value, low):
    if value >= low:
        assert whole("n", np.int64(value), low) == whole("n", value, low) == value
    else:
        with pytest.raises(UserError, match=f"n must be a whole number of at least {low}, got"):
            whole("n", value, low)


@pytest.mark.parametrize("bad", [1.0, "1", True, None, math.nan], ids=repr)
def test_whole_refuses_what_is_no_integer(bad):
    with pytest.raises(UserError, match="n must be a whole number of at least 0, got"):
        whole("n", bad, 0)


def test_choose_knows_a_choice_in_other_letters():
    with pytest.raises(UserError, match=r"choose from SGD, adam; did you mean 'SGD'\?$"):
        choose("optimizer", "sgd", ("SGD", "adam"))


def test_choose_lists_the_choices():
    choose("scale", "code", ("code", "text"))
    with pytest.raises(UserError, match="scale 'x' unknown; choose from code, text"):
        choose("scale", "x", ("code", "text"))


def test_one_is_singular():
    assert [counted(number, "row") for number in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert counted(12345, "class", "classes") == "12,345 classes"
