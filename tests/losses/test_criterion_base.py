"""What the criteria make of torch's losses: shapes, reductions, half precision, transforms, threads."""

import copy
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as tf
from torch.utils._pytree import tree_map

from softadlib import functional as F
from softadlib.losses import AdaFlood, Focal
from softadlib.losses.robust import ChiSquareDRO, CVaR, Tilted
from softadlib.losses.softad import ERM, Flooding, IFlood, SoftAD

SEED = torch.Generator().manual_seed(0)
LOGITS = 2 * torch.randn(6, 3, generator=SEED, dtype=torch.float64)
TARGETS = torch.tensor([0, 2, 1, 1, 0, 2])
HOLES = torch.tensor([0, -100, 1, 1, -100, 2])
KEPT = HOLES != -100
WEIGHT = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
SMOOTH = {
    "iflood": (partial(IFlood, 0.4), lambda v: 0.4 + (v - 0.4).abs()),
    "softad": (partial(SoftAD, 0.4, 0.5), lambda v: 0.4 + 0.25 * (((v - 0.4) / 0.5) ** 2 + 1).sqrt() - 0.25),
    "erm": (ERM, lambda v: v),
}  # fmt: skip
CONTRASTS = {"cvar": partial(CVaR, 0.5), "chi2": partial(ChiSquareDRO, 0.7), "tilted": partial(Tilted, 2)}  # fmt: skip
EVERY = {**{n: m for n, (m, _) in SMOOTH.items()}, "flooding": partial(Flooding, 0.4), **CONTRASTS}


def slope(criterion, logits, targets):
    leaf = logits.clone().requires_grad_()
    return torch.autograd.grad(criterion(leaf, targets), leaf)[0]


@pytest.mark.parametrize("targets", [TARGETS, HOLES], ids=["all", "holes"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weight"])
def test_erm_is_cross_entropy_with_its_options(targets, reduction, weight):
    base = nn.CrossEntropyLoss(weight=weight, reduction=reduction)
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1, reduction=reduction)
    for loss in (base, smooth, torch.compile(base, backend="eager")):
        ours = ERM(base=loss, reduction=reduction)
        torch.testing.assert_close(ours(LOGITS, targets), loss(LOGITS, targets))
        slopes = (slope(lambda *a, c=c: c(*a).sum(), LOGITS, targets) for c in (ours, loss))
        torch.testing.assert_close(*slopes)


def test_class_probabilities_count_alike():
    chances = torch.rand(6, 3, generator=SEED, dtype=torch.float64).softmax(1)
    values = -(chances * LOGITS.log_softmax(1)).sum(1)
    criterion = SoftAD(0.4)
    torch.testing.assert_close(criterion(LOGITS, chances), F.softad(values, 0.4))
    hot = tf.one_hot(TARGETS, 3).double()
    torch.testing.assert_close(criterion(LOGITS, hot), criterion(LOGITS, TARGETS))
    pixels = criterion(LOGITS.T.reshape(1, 3, 2, 3), chances.T.reshape(1, 3, 2, 3))
    torch.testing.assert_close(pixels, F.softad(values, 0.4))


# Other bases, more dimensions


def test_bce_with_logits_mse_and_any_callable():
    goals = (LOGITS > 0.3).double()
    bce = tf.binary_cross_entropy_with_logits(LOGITS, goals, reduction="none").flatten()
    assert SoftAD(0.4, base=nn.BCEWithLogitsLoss())(LOGITS, goals) == F.softad(bce, 0.4)
    square = (LOGITS - goals).square().flatten()
    assert SoftAD(0.4, base=nn.MSELoss())(LOGITS, goals) == F.softad(square, 0.4)
    assert SoftAD(0.4, base=lambda a, b: (a - b).square())(LOGITS, goals) == F.softad(square, 0.4)


@pytest.mark.filterwarnings("ignore:.*are read as .batch, classes, length:UserWarning")
@pytest.mark.parametrize("shape", [(2, 3), (1, 2, 3), (6,), (6, 1, 1)], ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_pixels_and_tokens_are_samples(name, shape):
    logits = torch.movedim(LOGITS.view(*shape, 3), -1, 1)
    criterion = EVERY[name]()
    torch.testing.assert_close(criterion(logits, HOLES.view(shape)), criterion(LOGITS, HOLES))


@pytest.mark.filterwarnings("ignore:.*are read as .batch, classes, length:UserWarning")
@pytest.mark.parametrize("name", SMOOTH)
def test_reduction_none_has_the_shape_of_the_target_and_adds_up(name):
    make, transform = SMOOTH[name]
    targets = TARGETS.view(2, 3)
    logits = torch.movedim(LOGITS.view(2, 3, 3), -1, 1)
    each = make(reduction="none")(logits, targets)
    torch.testing.assert_close(each, transform(tf.cross_entropy(logits, targets, reduction="none")))
    torch.testing.assert_close(each.sum(), make(reduction="sum")(logits, targets))
    torch.testing.assert_close(each.mean(), make()(logits, targets))
    assert make(reduction="none")(LOGITS[0], TARGETS[0]).shape == ()


# Precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", [IFlood, SoftAD, Flooding])
def test_half_precision_logits_up_to_6e4_are_finite_with_the_right_sign(make, dtype):
    """A loss of 0 ascends below θ, the saturated logits by 0; 1.2e5, which float16 does not hold, descends."""
    for row, target, slope_is in (
        ([6e4, -6e4], 0, lambda slope: slope == 0),
        ([-6e4, 6e4], 0, lambda slope: slope < 0),
        ([1e4, 0.0], 1, lambda slope: slope < 0),
        ([3.0, 0.0], 0, lambda slope: slope > 0),
    ):
        leaf = torch.tensor([row], dtype=dtype, requires_grad=True)
        value = make(0.1)(leaf, torch.tensor([target]))
        value.backward()
        assert value.dtype == torch.float32
        assert value.isfinite()
        assert leaf.grad.isfinite().all()
        assert slope_is(leaf.grad[0, target])


@pytest.mark.parametrize("base", [nn.MSELoss(), nn.KLDivLoss(reduction="batchmean")], ids=str)
def test_other_torch_losses_of_half_precision_are_computed_in_float32(base):
    x, y = torch.tensor([[300.0, -900.0]]), torch.tensor([[0.25, 1.0]])
    assert SoftAD(0.1, base=base)(x.half(), y.half()) == SoftAD(0.1, base=base)(x, y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", EVERY)
def test_autocast_computes_in_float32(name, dtype):
    logits = LOGITS.float()
    with torch.autocast("cpu", dtype=dtype):
        inside = EVERY[name]()(logits, HOLES)
    assert inside.dtype == torch.float32
    assert inside == EVERY[name]()(logits, HOLES)


def test_losses_close_to_theta_keep_their_digits_in_float32():
    gaps = torch.tensor([1e-4, -1e-4, 3e-5, 1e-6, 2e-7])
    values = 0.5 + gaps
    exact = (values.double() - 0.5).square() / 2
    found = F.softad(values, 0.5, eta=0.0, reduction="none").double()
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=0)
    assert ((1 + (values - 0.5) ** 2).sqrt() - 1)[0] == 0  # as it is usually written


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", EVERY)
def test_no_more_tensors_of_the_logits_size_are_kept_than_by_cross_entropy(name, dtype):
    logits = LOGITS.to(dtype).requires_grad_()

    def kept(criterion):
        seen = []  # log-softmax and NLL keep the same memory: counted once
        with torch.autograd.graph.saved_tensors_hooks(lambda v: seen.append(v) or v, lambda v: v):
            criterion(logits, HOLES)
        return len({v.data_ptr() for v in seen if v.numel() == logits.numel()})

    assert kept(EVERY[name]()) == kept(nn.CrossEntropyLoss()) == 1


def test_an_infinitely_wrong_logit_is_nan_for_softad_and_infinite_for_others():
    logits = torch.tensor([[-math.inf, 0.0], [1.0, 0.0]])
    targets = torch.tensor([0, 0])
    assert SoftAD(0.1)(logits, targets).isnan()
    for criterion in (ERM(), IFlood(0.1), Flooding(0.1), Focal(2.0), CVaR(0.5)):
        assert criterion(logits, targets) == math.inf


# Transforms, copies and threads


@pytest.mark.parametrize(
    ("name", "weight"), [*((name, None) for name in EVERY if name != "erm"), ("softad", WEIGHT)]
)
def test_compiles_whole_with_ignored_targets_and_weights(name, weight):
    torch.compiler.reset()  # every criterion shares one `forward`, and torch counts its versions
    criterion = EVERY[name](base=nn.CrossEntropyLoss(weight=weight))
    compiled = torch.compile(criterion, backend="eager", fullgraph=True)
    # eager on a CPU takes the plain mean where nothing is ignored: another order of sums
    for targets in (TARGETS, HOLES):
        values = compiled(LOGITS, targets), criterion(LOGITS, targets)
        torch.testing.assert_close(*values, rtol=1e-14, atol=0)
    ours = slope(compiled, LOGITS, HOLES)
    torch.testing.assert_close(ours, slope(criterion, LOGITS, HOLES))


def test_adaflood_compiles_whole():
    criterion, index = AdaFlood(torch.linspace(0, 1, 6)), torch.tensor([5, 0, 3, 2, 1, 4])
    compiled = torch.compile(criterion, backend="eager", fullgraph=True)
    assert compiled(LOGITS, TARGETS, index) == criterion(LOGITS, TARGETS, index)
    for strange in (index + 1, index - 1):
        with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
            compiled(LOGITS, TARGETS, strange)


@pytest.mark.parametrize(
    ("name", "weight"),
    [(name, None) for name in EVERY] + [(name, torch.tensor([1.0, 2.0, 0.5])) for name in SMOOTH],
)
def test_torch_func_of_a_model_per_run_and_per_sample(name, weight):
    criterion, model = EVERY[name](base=nn.CrossEntropyLoss(weight)), nn.Linear(3, 3).double()
    params = {n: p.detach() for n, p in model.named_parameters()}
    stacked = {n: torch.stack([p, 2 * p]) for n, p in params.items()}

    def objective(params, x, y):
        return criterion(functional_call(model, params, (x,)), y)

    runs = vmap(grad(objective), in_dims=(0, None, None))(stacked, LOGITS, HOLES)
    torch.testing.assert_close(runs["weight"][0], grad(objective)(params, LOGITS, HOLES)["weight"])
    for x, y in ((LOGITS[:, None], TARGETS[:, None]), (LOGITS, TARGETS)):
        for function in (objective, grad(objective)):
            single = vmap(function, in_dims=(None, 0, 0))(params, x, y)
            expected = function(params, LOGITS[[2]], TARGETS[[2]])
            torch.testing.assert_close(tree_map(lambda v: v[2], single), expected)


@pytest.mark.parametrize("name", EVERY)
def test_options_survive_copies_pickles_and_states(name):
    base = nn.CrossEntropyLoss(ignore_index=1, label_smoothing=0.1)
    criterion = EVERY[name](base=base)
    for twin in (copy.deepcopy(criterion), pickle.loads(pickle.dumps(criterion))):
        assert twin(LOGITS, TARGETS) == criterion(LOGITS, TARGETS)
        twin.load_state_dict(criterion.state_dict())
    assert base.reduction == "mean"


def test_eight_threads_share_a_criterion_with_class_weights():
    base = nn.CrossEntropyLoss(weight=WEIGHT.float())
    criterion = SoftAD(0.4, base=base)
    batches = [torch.randn(8, 3, generator=SEED) for _ in range(50)]
    targets = torch.arange(8) % 3
    expected = [criterion(logits, targets).item() for logits in batches]

    def work(_):
        return [criterion(logits, targets).item() for _ in range(8) for logits in batches]

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(work, range(8)):
            assert found == 8 * expected
