"""A training that was cut goes on from inside, to the same bits; a file that is not whole is no state."""

import io
import pickle
import time

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.engines import KNOBS, SEEDS, SETTINGS, networks, samples, splits, stack
from helpers.graphs import Recorded
from helpers.workspace import TINY, make_home
from torch.utils._pytree import tree_map

from softadlib._validation import UserError
from softadlib.methods import METHODS
from softadlib.results.folder import ResultFolder
from softadlib.results.schema import MEASURES
from softadlib.training import auto_theta, checkpoint, heldout, trainer
from softadlib.training.checkpoint import Checkpoint, NullCheckpoint, deserialize, serialize
from softadlib.training.engines.base import RunBatch, TrainConfig
from softadlib.training.engines.cuda_graph import GraphedStep
from softadlib.training.engines.mlp_cpu import MLPEngine
from softadlib.training.engines.streams import StreamEngine
from softadlib.training.engines.vmap import VmapEngine
from softadlib.training.executors import run_writer
from softadlib.training.executors.local import TaskContext
from softadlib.training.protocol import Protocol

EPOCHS, EVERY, CUT = 10, 3, 8
RECIPES = {
    "adam": TrainConfig("adam", 1e-2, 10, EPOCHS, weight_decay=1e-3),
    "momentum": TrainConfig("sgd", 0.05, 10, EPOCHS, momentum=0.9),
    "sgd": TrainConfig("sgd", 0.05, 10, EPOCHS),
}
ENGINES = {
    "mlp": (MLPEngine, 1),
    "stack of one": (VmapEngine, 1),
    "stack": (VmapEngine, 3),
    "lanes": (StreamEngine, 2),
}


class Accident(BaseException):
    pass


def loaded(content):
    """The state as a file gives it back: measures are arrays."""
    state = deserialize(content)
    return {**state, "measured": tree_map(torch.Tensor.numpy, state["measured"])}


class Pocket(NullCheckpoint):
    """Keeps the last state as the bytes that a file would hold."""

    def __init__(self, content=None):
        self.state, self.content = content and loaded(content), content

    def due(self, epoch):
        return 0 < epoch < EPOCHS and epoch % EVERY == 0

    def save(self, state):
        self.content = serialize(state)


def engine(name, method):
    make, runs = ENGINES[name]
    trials = (0, 1, 1)[:runs]
    nets, data = networks(trials, torch.float32), splits(torch.float32)
    knobs = KNOBS[METHODS[method].knob][:runs]
    return make(RunBatch(METHODS[method], nets, data, trials, knobs, SETTINGS, samples()))


def cut_at(epochs):
    """A tick that ends everything once so many epochs of runs are over; `count` of them."""

    def tick(runs):
        tick.count += runs
        if tick.count >= epochs:
            raise Accident

    tick.count = 0
    return tick


@pytest.mark.parametrize(
    ("method", "recipe"),
    [("softad", "adam"), ("sam", "adam"), ("sam", "momentum"), ("adaflood", "sgd")],
)
@pytest.mark.parametrize("name", ENGINES)
def test_what_goes_on_ends_where_the_uninterrupted_ends_bit_for_bit(name, method, recipe):
    recipe, measured = RECIPES[recipe], {0, 2, 5, 7, 10}
    whole, first, second = (engine(name, method) for _ in range(3))
    runs = len(whole)
    expected = whole.train(recipe, SEEDS, measured)
    pocket, done = Pocket(), CUT * runs
    with pytest.raises(Accident):
        first.train(recipe, SEEDS, measured, progress=cut_at(done), checkpoint=pocket)
    resumed, ticks = Pocket(pocket.content), []
    got = second.train(recipe, SEEDS, measured, progress=ticks.append, checkpoint=resumed)
    assert list(got) == list(expected)
    for epoch in expected:
        for measure in MEASURES:
            np.testing.assert_array_equal(got[epoch][measure], expected[epoch][measure])
    for run in range(runs):
        for ours, theirs in zip(second.state(run), whole.state(run)):
            assert all(torch.equal(ours[k], theirs[k]) for k in theirs)
    assert sum(ticks) == runs * EPOCHS
    assert done - ticks[0] < EVERY * runs, "lost with the accident"
    assert ticks[0] > 0


def test_a_captured_step_goes_on_with_its_own_tensors(monkeypatch):
    """As a CUDA graph does: its addresses are fixed, so values must come to them."""
    monkeypatch.setattr(GraphedStep, "capture", staticmethod(Recorded()))
    for recipe in RECIPES.values():
        made, whole = stack("softad"), stack("softad")
        made.begin(recipe)
        saved = deserialize(serialize(_after(whole, recipe, 3)))
        _after(made, recipe, 1)  # its optimizer has made its state
        tensors = {id(t) for s in made.optimizer.state.values() for t in s.values()}
        made.load_state_dict(saved)
        assert {id(t) for s in made.optimizer.state.values() for t in s.values()} == tensors
        for both in zip(_leaves(made.state_dict()), _leaves(saved), strict=True):
            assert torch.equal(*both)


def _after(made, recipe, epochs):
    run_epoch = made.begin(recipe)
    for epoch in range(epochs):
        run_epoch([torch.arange(10 * epoch, 10 * epoch + 10).expand(2, -1)])
    return made.state_dict()


def _leaves(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in _leaves(value)]
    return [leaf for value in tree for leaf in _leaves(value)] if isinstance(tree, list) else []


# Files


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    return make_home(tmp_path)


def protocol(**changes):
    settings = {"epochs": 10, "checkpoint_every": 3, "model": "mlp1x1000", "dtype": "float32"}
    facts = {"profile": "tiny", "dataset": "gaussian", "device": "cpu"}
    return Protocol.from_dict({**facts, **TINY, **settings, **changes})


def place(made):
    return ResultFolder(made.profile, "gaussian", "softad", made.fingerprint("softad"))


def keep_rows(where):
    return lambda rows, losses: where.save_part(rows)


def train(made, tick=lambda units: None):
    runs, where = list(made.runs("softad")), place(made)
    return trainer.train_runs(
        made, runs, {0, 5, 10}, tick, keep_rows(where), None, where.checkpoints
    )


def files(made):
    return sorted((place(made).path / "checkpoints").glob("*"))


def cut(made, epochs=18):
    with pytest.raises(Accident):
        train(made, cut_at(epochs))


def test_at_most_checkpoint_every_epochs_are_lost_and_the_rows_are_the_same(home):
    made = protocol()
    whole = train(protocol(profile="whole", checkpoint_every=0))
    cut(made)  # the second run's eighth epoch
    assert len(files(made)) == 1
    stored = place(made).stored_rows()
    assert len(stored) == 3, "the run that had ended is stored"
    ticks = []
    rows = train(made, ticks.append)
    pd.testing.assert_frame_equal(rows, whole)
    assert rows.attrs["resumed"] == 6
    assert ticks.count(6) == 1, "six epochs of the second run were there, two are done again"
    assert not (place(made).path / "checkpoints").exists()


def test_another_lots_state_is_not_ones_own(home):
    made = protocol(trials=1)
    cut(made, 8)
    (left,) = files(made)
    other = protocol(trials=1, lr=0.2)
    assert train(other).attrs["resumed"] == 0, "another protocol"
    one = made.runs("softad")[:1]
    rows = trainer.train_runs(
        made, one, {10}, lambda n: None, samples=None, checkpoints=place(made).checkpoints
    )
    assert rows.attrs["resumed"] == 0, "measured elsewhere"
    assert files(made) == [left], "neither used nor destroyed"


@pytest.mark.parametrize("fact", ["device", "torch"])
def test_a_state_of_another_machine_is_not_gone_on_from(home, monkeypatch, fact):
    made = protocol()
    with monkeypatch.context() as patch:
        if fact == "device":
            patch.setattr(run_writer, "device_name", lambda device: "another")
        else:
            patch.setattr(run_writer.torch, "__version__", "1.0")
        cut(made)
    assert train(made).attrs["resumed"] == 0


class Evil:
    def __reduce__(self):
        return (open, ("evil.txt", "w"))


def evil():
    content = io.BytesIO()
    torch.save({"facts": Evil()}, content)
    return content.getvalue()


def signed(content):
    return content + checkpoint.hashlib.sha256(content).digest()


DAMAGE = {
    "empty": lambda old: b"",
    "cut": lambda old: old[: len(old) // 2],
    "cut at the end": lambda old: old[:-1],
    "garbage": lambda old: bytes(np.random.default_rng(1).bytes(5000)),
    "one bit": lambda old: old[:3000] + bytes([old[3000] ^ 1]) + old[3001:],
    "foreign": lambda old: serialize({"facts": {"another": "program"}, "state": {}}),
    "no dict": lambda old: serialize([1, 2, 3]),
    "a pickle": lambda old: signed(pickle.dumps(Evil())),
    "a pickle inside": lambda old: signed(evil()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_foreign_file_is_ignored_and_overwritten(home, monkeypatch, damage):
    monkeypatch.chdir(home)
    made = protocol(trials=1, grids={"softad": [0.05]})
    whole = train(protocol(trials=1, grids={"softad": [0.05]}, profile="whole", checkpoint_every=0))
    cut(made, 8)
    (path,) = files(made)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    rows = train(made)
    assert rows.attrs["resumed"] == 0
    pd.testing.assert_frame_equal(rows, whole)
    assert files(made) == []
    assert not (home / "evil.txt").exists()


def test_stock_torch_reads_the_file_too(home):
    made = protocol()
    cut(made)
    (path,) = files(made)
    found = torch.load(path, weights_only=True)
    assert found["epoch"] == 6
    assert found["facts"]["fingerprint"] == made.fingerprint("softad")


def test_auto_waits_a_minute_between_two_saves(home, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    made = protocol()
    kept = Checkpoint(place(made).checkpoints, made.fingerprint("softad"), {}, "auto")
    assert [kept.due(e) for e in (0, 1, 999)] == [False] * 3
    now[0] += 61
    assert [kept.due(e) for e in (0, 1)] == [False, True], "not before the first epoch"
    monkeypatch.setattr(checkpoint, "write", lambda *a: now.__setitem__(0, now[0] + 10.0))
    kept.save({})
    now[0] += 59
    assert not kept.due(2), "counted from the end of the save"
    now[0] += 2
    assert kept.due(2)


def test_0_keeps_nothing_and_goes_on_from_nothing(home):
    cut(protocol())
    (left,) = files(protocol())
    content = left.read_bytes()
    made = protocol(checkpoint_every=0)
    cut(made)
    assert files(made) == [left]
    assert left.read_bytes() == content
    assert train(made).attrs["resumed"] == 0


def test_a_state_that_cannot_be_written_stops_nothing(home, monkeypatch):
    made = protocol()

    def full(path, content):
        raise UserError("No space left on device")

    monkeypatch.setattr(checkpoint, "write", full)
    assert len(train(made)) == 3 * 4


def test_checkpoint_every_says_nothing_about_the_numbers():
    assert len({protocol(checkpoint_every=n).fingerprint("softad") for n in (0, 1, 7, "auto")}) == 1
    assert Protocol.from_dict({"profile": "p", "dataset": "gaussian"}).checkpoint_every == "auto"
    for value in (-1, 1.5, "often", True, None):
        with pytest.raises(UserError, match="checkpoint_every must be auto, or a whole number of"):
            protocol(checkpoint_every=value)


# Trainings that others ask for


def epochs_of(find, cut_after=10**9):
    """What `find(tick)` finds, and how many epochs were trained for it; None where it was cut."""
    count = 0

    def tick(runs):
        nonlocal count
        count += runs == 1  # epochs that were gone on from come as one number
        if count >= cut_after:
            raise Accident

    try:
        return find(tick), count
    except Accident:
        return None, count


@pytest.mark.parametrize(
    ("aux", "all_epochs", "cut_after", "left"),
    # in the seventh epoch of the third of four folds; in the eighth of the one model
    [("folds", 40, 27, 4 + 10), ("last-layer", 10, 8, 4)],
)
def test_models_that_hold_out_go_on_from_inside(home, aux, all_epochs, cut_after, left):
    changes = {
        "trials": 1,
        "settings": {"adaflood": {"aux": aux, "aux_folds": 4}},
        "grids": {"adaflood": [0.5]},
    }

    def find(stored=True, **more):
        p = protocol(**changes, **more)
        folder = (
            ResultFolder("tiny", "gaussian", "adaflood", p.fingerprint("adaflood"))
            if stored
            else None
        )
        checkpoints = folder and folder.checkpoints
        return lambda progress: heldout.held_out(
            p, 0.0, [0], TaskContext(folder, checkpoints, progress)
        )

    whole, count = epochs_of(find(stored=False))
    assert count == all_epochs
    assert epochs_of(find(), cut_after) == (None, cut_after)
    losses, count = epochs_of(find())
    np.testing.assert_array_equal(losses, whole)
    assert count == left, "at most checkpoint_every epochs are done again, and no fold"
    _, count = epochs_of(find(lr=0.2))
    assert count == all_epochs, "another protocol's are not its own"
    made = protocol(**changes)
    where = ResultFolder("tiny", "gaussian", "adaflood", made.fingerprint("adaflood"))
    heldout.sample_inputs(made, made.runs("adaflood"), where)
    assert not list(where.checkpoints.glob(f"{made.fingerprint('adaflood')}-*")), "they have served"
    assert where.read_held_out(0.0, 0) is not None


def test_the_ordinary_run_that_theta_is_read_off_goes_on_from_inside(home):
    made = protocol(trials=1, grids={"softad": "auto"})

    def find(tick):
        context = TaskContext(place(made), place(made).checkpoints, tick)
        return auto_theta.suggestions(made, 0.0, [0], context)

    whole = auto_theta.suggestions(made, 0.0, [0])
    assert epochs_of(find, 8) == (None, 8)
    assert len(files(made)) == 1
    assert epochs_of(find) == (whole, 4)
    assert files(made) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("recipe", ["adam", "momentum"])
@pytest.mark.parametrize("name", ["stack of one", "stack", "lanes"])
def test_on_cuda_what_goes_on_is_bit_for_bit_too(name, recipe):
    """The step is captured anew after the state is back."""
    make, runs = ENGINES[name]
    recipe, measured, trials = RECIPES[recipe], {0, 5, 10}, (0, 1, 1)[:runs]

    def engine():
        data = splits(torch.float32).to("cuda", torch.float32)
        knobs = KNOBS["radius"][:runs]
        nets = networks(trials, torch.float32)
        return make(RunBatch(METHODS["sam"], nets, data, trials, knobs, SETTINGS))

    expected, pocket = engine().train(recipe, SEEDS, measured), Pocket()
    with pytest.raises(Accident):
        engine().train(recipe, SEEDS, measured, progress=cut_at(CUT * runs), checkpoint=pocket)
    got = engine().train(recipe, SEEDS, measured, checkpoint=Pocket(pocket.content))
    for epoch in expected:
        for measure in MEASURES:
            np.testing.assert_array_equal(got[epoch][measure], expected[epoch][measure])
