"""The registry: class probabilities in closed form are those at the minimum of the method's own objective."""

import pytest
import torch

from softadlib._validation import UserError
from softadlib.methods import METHODS, Method, Setting, get_method

CLASSES = torch.tensor([0] * 6 + [1] * 3 + [2])
"""Labels of ten samples that look alike: the probabilities are 0.6, 0.3 and 0.1."""
CLOSED = [name for name, method in METHODS.items() if method.log_probabilities]
WHOLE_BATCH = {"flooding", "cvar", "chi2", "tilted"}
"""Methods that are no mean over samples."""
OF_SINGLE_SAMPLES = {
    "erm",
    "iflood",
    "softad",
    "softad-width",
    "softad-logcosh",
    "focal",
    "smoothing",
}


def test_methods_of_single_samples_have_class_probabilities():
    assert set(CLOSED) >= OF_SINGLE_SAMPLES
    assert WHOLE_BATCH.isdisjoint(CLOSED)


@pytest.mark.parametrize("knob", [0.05, 0.3])
@pytest.mark.parametrize("name", CLOSED)
def test_class_probabilities_are_those_at_the_minimum_of_the_objective(name, knob):
    method = METHODS[name]
    knob = torch.tensor(knob, dtype=torch.float64)
    settings = {k: method.defaults[k] for k in method.settings_for("objective")}
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [logits],
        max_iter=500,
        tolerance_grad=1e-12,
        tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimizer.zero_grad()
        losses = method.losses(logits.expand(10, 3), CLASSES, knob)
        value = method.objective(losses, knob, **settings)
        value.backward()
        return value

    optimizer.step(closure)
    found = method.log_probabilities(logits.detach()[None], knob, **settings).exp()
    expected = torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "name", [name for name, method in METHODS.items() if method.gradient_weights]
)
def test_the_registered_derivative_is_that_of_the_objective(name):
    """By automatic differentiation: what the engine of perceptrons trains with is what is differentiated."""
    method, knob = METHODS[name], torch.tensor(0.3, dtype=torch.float64)
    settings = {k: method.defaults[k] for k in method.settings_for("objective")}
    losses = torch.tensor([0.05, 0.2, 0.7, 3.0], dtype=torch.float64)
    slope = torch.func.grad(lambda v: method.objective(v, knob, **settings))(losses)
    torch.testing.assert_close(method.gradient_weights(losses, knob, **settings), 4 * slope)


def test_a_whole_number_is_at_least_0_unless_low_says_otherwise():
    assert Setting(5, "folds").check("folds", 0) == 0
    assert Setting(5, "shift", low=-2).check("shift", -2) == -2
    with pytest.raises(UserError, match="folds must be a whole number of at least 0, got -1"):
        Setting(5, "folds").check("folds", -1)


def test_a_method_is_found_by_its_own_name_alone(monkeypatch):
    monkeypatch.setitem(METHODS, "mine", Method("other", "Other"))
    with pytest.raises(UserError, match=r"METHODS\['mine'\] has the name 'other'"):
        get_method("mine")
