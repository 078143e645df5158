"""Strategies and tolerances for the tests of objectives."""

import torch
from hypothesis import strategies as st

losses = st.lists(st.floats(0, 20, allow_subnormal=False), min_size=1, max_size=12).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


SPREAD = torch.tensor([0.3, 0.05, 2.0, 0.71, 1.4], dtype=torch.float64)


def weights(function, values, *args, **settings):
    """n times the derivative in each loss, by autograd."""
    leaf = values.clone().requires_grad_()
    value = function(leaf, *args, **settings)
    return len(values) * torch.autograd.grad(value, leaf)[0]


def close(a, b, rtol=1e-12, atol=1e-12, equal_nan=False):
    a, b = (torch.as_tensor(v, dtype=torch.float64) for v in (a, b))
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)
