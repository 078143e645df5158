import hashlib
import json
import math

import pytest
import yaml
from helpers.workspace import REPOSITORY, TINY, make_home

from softadlib._validation import UserError
from softadlib._yaml import parse_yaml
from softadlib.methods import METHODS, PAPER
from softadlib.results.fingerprint import LEGACY_SETTINGS, RUNTIME_FIELDS, SELECTION_FIELDS
from softadlib.training.profiles import datasets_of, load, profile_names
from softadlib.training.protocol import Protocol, Run, trial_seeds

BASE = {"profile": "tiny", "dataset": "gaussian", **TINY}


OTHER_SETTINGS = [
    ("sam", "bn_update", "first"),
    ("softad", "sigma", 2.0),
    ("softad", "eta", 0.5),
    ("softad", "scale", "text"),
    ("asam", "bn_update", "first"),
    ("asam", "variant", "davda54"),
    ("asam", "eta", 0.1),
    ("gnp", "bn_update", "first"),
    ("gnp", "radius", 0.2),
    ("gnp", "mixing", "official"),
    ("fdgr", "bn_update", "first"),
    ("fdgr", "step_size", 0.1),
    ("fdgr", "scheme", "centered"),
    ("adaflood", "aux", "last-layer"),
    ("adaflood", "aux_folds", 4),
]
LEGACY_VALUES = {
    "sigma": 1.0,
    "scale": "code",
    "bn_update": "both",
    "variant": "official",
    "eta": 0.01,
    "radius": 0.1,
    "mixing": "paper",
    "step_size": 0.01,
    "scheme": "forward",
    "aux": "folds",
    "aux_folds": 5,
}
"""The fields that settings were once, at their defaults."""


def nested(key, value):
    """{a: {b: value}} of "a.b"."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def protocol(**changes):
    return Protocol.from_dict({**BASE, **changes})


def test_runs_are_noise_times_trials_times_grid():
    runs = protocol(label_noise=[0.0, 0.1], trials=3, grids={"softad": [0.3, 0.1]}).runs("softad")
    assert len(runs) == 2 * 3 * 2
    assert runs[0] == Run("softad", 0.0, 0, 0.1), "grids are sorted"
    assert {r.trial for r in runs} == {0, 1, 2}


def test_erm_has_one_run_a_trial_and_no_knob():
    runs = protocol(trials=3).runs("erm")
    assert len(runs) == 3
    assert all(math.isnan(r.knob) for r in runs)
    assert runs[0].key == (0.0, 0, None)


def test_methods_are_erm_and_those_with_a_grid():
    assert protocol(grids={"sam": [0.1]}).methods == ("erm", "sam")
    assert protocol(grids={}).methods == ("erm",)


def test_every_method_with_a_knob_takes_a_grid():
    grids = {name: [0.0, 0.5] for name, method in METHODS.items() if method.knob}
    p = protocol(grids=grids)
    assert p.methods == tuple(METHODS)
    for name, method in METHODS.items():
        assert p.settings_of(name) == method.defaults
        assert len(p.runs(name)) == (2 * p.trials if method.knob else p.trials)


def test_a_tilt_may_be_negative():
    assert protocol(grids={"tilted": [1.0, -1.0]}).grids["tilted"] == (-1.0, 1.0)
    spaced = {"linspace": [-1, 1, 3]}
    assert protocol(grids={"tilted": spaced}).grids["tilted"] == (-1.0, 0.0, 1.0)
    with pytest.raises(UserError, match=r"theta in grids\.softad must be .* at least 0"):
        protocol(grids={"softad": spaced})


def test_linspace_grid_is_the_papers():
    grid = protocol(grids={"softad": {"linspace": [0.01, 2.0, 40]}}).grids["softad"]
    assert len(grid) == 40
    assert grid[0] == 0.01
    assert grid[-1] == 2.0
    assert grid[14] == pytest.approx(0.7244, abs=5e-5)


def test_seeds_are_the_authors_and_a_prefix():
    assert trial_seeds(5) == (17716, 961412, 457707, 491380, 1029701)
    assert trial_seeds(15)[:5] == trial_seeds(5)


def test_fingerprint_changes_with_what_a_run_does_and_with_nothing_else():
    same = [{"trials": 9}, {"grids": {"sam": [1.0]}}, {"device": "cpu"}, {"stack": 16}, {"ties": "smallest"},
            {"curve_every": 3}, {"profile": "other"}, {"label_noise": [0.1]}]  # fmt: skip
    other = [{"lr": 0.2}, {"epochs": 5}, {"dtype": "float32"}, {"batch_size": 20},
             {"dataset": "spiral"}, {"n_test": 60}]  # fmt: skip
    for method in METHODS:
        own = [{"settings": {m: {name: value}}} for m, name, value in OTHER_SETTINGS if m == method]
        foreign = [{"settings": {m: {n: v}}} for m, n, v in OTHER_SETTINGS if m != method]
        plain = protocol().fingerprint(method)
        assert {protocol(**c).fingerprint(method) for c in same + foreign} == {plain}
        changed = {protocol(**c).fingerprint(method) for c in other + own}
        assert plain not in changed
        assert len(changed) == len(other + own)


def test_the_fingerprint_knows_every_setting():
    have = {(m.name, name) for m in METHODS.values() for name in m.settings}
    assert {(method, name) for method, name, _ in OTHER_SETTINGS} == have


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [case for case in OTHER_SETTINGS if case[0] in LEGACY_SETTINGS.get(case[1], ())],
)
def test_protocols_with_settings_among_their_fields_are_read_from_provenance(method, name, value):
    facts = {k: v for k, v in protocol().to_dict().items() if k != "settings"}
    read = Protocol.from_provenance({**facts, name: value})
    for taker in LEGACY_SETTINGS[name]:
        assert read.settings_of(taker)[name] == value
    flat = {**LEGACY_VALUES, name: value}
    skip = {*RUNTIME_FIELDS, *SELECTION_FIELDS}
    old = {k: v for k, v in {**facts, **flat}.items() if k not in skip}
    old = {
        k: v for k, v in old.items() if {"aux": "folds", "aux_folds": 5, "folder": ""}.get(k) != v
    }
    text = json.dumps([3, old], sort_keys=True)
    assert read.fingerprint(method) == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_round_trip_through_plain_values():
    p = protocol(label_noise=[0.0, 0.05])
    assert Protocol.from_dict(p.to_dict()) == p
    assert Protocol.from_dict(yaml.safe_load(yaml.safe_dump(p.to_dict()))) == p


BAD = {
    "dataset": ["moons", 3],
    "model": ["resnet99"],
    "optimizer": ["lion"],
    "settings.softad.scale": ["paper"],
    "settings.sam.bn_update": ["second"],
    "settings.asam.variant": ["adaptive", None],
    "settings.gnp.mixing": ["theirs", True],
    "settings.fdgr.scheme": ["backward"],
    "settings.asam.eta": [-0.01, math.nan, "0.01"],
    "settings.gnp.radius": [-0.1, math.inf, None],
    "settings.fdgr.step_size": [0, -0.01, "small"],
    "settings.adaflood.aux_folds": [1, 2.0, "5"],
    "settings": [7, "softad", {"softad": 3}, {"erm": {"sigma": 1.0}}],
    "settings.softad": [{"theta": 0.1}],
    "ties": ["median"],
    "curves": ["some"],
    "dtype": ["float16"],
    "device": ["tpu"],
    "profile": ["../up", "", "a b", 7],
    "settings.softad.sigma": [0, -1.0, math.nan, math.inf, "1.0", True, None],
    "lr": [0, -0.1, math.nan, "fast"],
    "momentum": [-0.1, 1.5],
    "weight_decay": [-1],
    "epochs": [0, -3, 2.5, "10", True],
    "trials": [0, 1.5],
    "batch_size": [0, 1],
    "n_train": [0, -5, "many"],
    "n_test": [0],
    "curve_every": [0],
    "stack": [-1],
    "label_noise": [-0.1, 1.2, math.nan, "0.1", [], [0.1, 0.1], [0.1, "x"]],
    "grids": [
        "softad",
        {"softad": []},
        {"softad": "[0.1, 0.2]"},
        {"softad": 0.1},
        {"softad": [0.1, -0.2]},
        {"softad": [math.nan]},
        {"softad": ["0.1"]},
        {"softad": [0.1, 0.1]},
        {"sam": [-0.05]},
        {"sam": [math.inf]},
        {"cvar": [0.5, 1.0]},
        {"tilted": [math.inf]},
        {"nosuch": [0.1]},
        {"erm": [0.1]},
        {"softad": {"linspace": [0.1, 0.2]}},
        {"softad": {"linspace": [0.1, 0.2, 0]}},
        {"softad": {"logspace": [0.1, 0.2, 3]}},
        {"softad": {"linspace": "0.1"}},
    ],
}


@pytest.mark.parametrize(
    ("key", "value"), [(k, v) for k, values in BAD.items() for v in values], ids=str
)
def test_bad_values_are_one_line_with_name_and_value(key, value):
    with pytest.raises(UserError) as caught:
        protocol(**nested(key, value))
    message = str(caught.value)
    assert "\n" not in message
    if key in ("grids", "settings", "settings.softad"):
        assert key.split(".")[0].removesuffix("s") in message
        culprit = next(iter(value)) if isinstance(value, dict) else value
        assert str(culprit) in message
    else:
        assert key in message
        culprit = value[-1] if isinstance(value, list) and value and value != [0.1, 0.1] else value
        assert repr(culprit) in message


def test_unknown_parameter_names_the_choices():
    with pytest.raises(UserError, match=r"parameter 'epoch' unknown; choose from .*epochs"):
        protocol(epoch=3)


def test_unknown_method_names_the_choices():
    with pytest.raises(UserError, match=r"method 'ishida' unknown; choose from erm, sam, softad"):
        protocol().runs("ishida")


def test_a_last_batch_of_one_is_refused():
    with pytest.raises(UserError, match="batch_size 10 leaves a last batch of one of 21"):
        protocol(dataset="sinusoid", n_train=21)


@pytest.mark.parametrize("name", ["n_train", "n_val", "n_test"])
def test_sets_made_of_two_halves_need_even_sizes(name):
    for dataset in ("gaussian", "spiral"):
        with pytest.raises(UserError, match=f"{name} must be even for {dataset}"):
            protocol(dataset=dataset, **{name: 27})
    assert getattr(protocol(dataset="sinusoid", **{name: 27}), name) == 27


def test_cliff_note_counts_values_at_and_above_ln2():
    grids = {"softad": [0.1, math.log(2), 1.0], "flooding": [1.0], "iflood": [0.5]}
    note = protocol(grids=grids).cliff_note()
    assert "2 of 3 of softad" in note
    assert "flood" not in note, "Flooding acts on the batch mean; iFlood's value is below"
    assert protocol(grids=grids).cliff_note(["flooding", "iflood"]) is None
    assert protocol(grids={"softad": [0.69]}).cliff_note() is None


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    return make_home(tmp_path)


def test_load_reads_overrides_and_refuses_what_does_not_fit(home, tmp_path, monkeypatch):
    assert load("tiny", "gaussian", {"epochs": 2}).epochs == 2
    for call, words in (
        (lambda: load("nosuch", "gaussian"), "profile 'nosuch' unknown; choose from tiny"),
        (lambda: load("tiny", "moons"), "dataset 'moons' unknown; choose from gaussian"),
        (lambda: load("tiny", "gaussian", {"epoch": 2}), "parameter 'epoch' unknown"),
        (
            lambda: load("tiny", "gaussian", {"dataset": "spiral"}),
            "parameter 'dataset' unknown",
        ),
        (lambda: load("tiny", "gaussian", {"epochs": 0}), "epochs must be a whole number"),
        (
            lambda: load("tiny", "gaussian", {"epochs": 10**22}),
            "epochs must be a whole number of at least 1 and at most 1,000,000, got 1",
        ),
        (
            lambda: load("tiny", "gaussian", {"n_test": 10**12}),
            "n_test must be a whole number of at least 0 and at most 10,000,000, got 1",
        ),
        (
            lambda: load("tiny", "gaussian", {"grids": {"softad": {"linspace": [0, 1, 10**11]}}}),
            "grids.softad count must be at most 10,000, got 100000000000",
        ),
    ):
        with pytest.raises(UserError) as caught:
            call()
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path / "params"))  # no workbook
    with pytest.raises(UserError, match="no profiles under"):
        datasets_of("tiny")


def test_yaml_may_merge_a_mapping_into_another():
    text = "base: &base {lr: 1, epochs: 2}\nother: {<<: *base, lr: 3}"
    assert parse_yaml(text)["other"] == {"lr": 3, "epochs": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1", 1), ("-3", -3), ("0", 0), ("1_000", 1000), ("0x10", "0x10")),
        *(("1e-3", 0.001), ("1e2", 100.0), ("1.", 1.0), ("-.5e-3", -0.0005), (".inf", math.inf)),
        *(("010", "010"), ("1:30", "1:30"), ("1:30.5", "1:30.5"), ("null", None), ("yes", True)),
    ],
)
def test_numbers_of_yaml_are_decimal(text, value):
    """YAML 1.1 reads 010 as 8, 1:30 as 90, and 1e2 as a text."""
    assert parse_yaml(text) == value
    assert type(parse_yaml(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epochs: [1, 2\nlr: 3", "broken YAML"),
        ("epochs: " + "[" * 3000 + "]" * 3000, "broken YAML"),
        (
            "epochs: 010",
            "epochs must be a whole number of at least 1 and at most 1,000,000, got '010'",
        ),
        ("lr: 0.1\nlr.x: 1", "lr.x cannot be set: lr is 0.1, no mapping"),
        ("grids: {softad: [0.1]}\ngrids.softda: null", "choose from softad"),
        ("lr: 0.1\nepochs: 3\nlr: 0.2", "line 3: broken YAML ('lr' stands twice)"),
        ("grids: {softad: [0.1], softad: [0.2]}", "('softad' stands twice)"),
        ("epochs: 2026-13-01", "broken YAML (month must be in 1..12"),
        ("epochs: !!int x", "broken YAML (invalid literal for int()"),
        ("epochs: !!map [1]", "broken YAML"),
        ("epochs: " + "1" * 5000, "broken YAML (Exceeds the limit"),
        ("self: 1", "parameter 'self' unknown"),
        ("- a\n- b", "must hold `name: value` lines"),
        ("", "must hold `name: value` lines"),
        ("profile: other\ndataset: gaussian", "but the path says 'tiny'"),
        ("dataset: spiral", "but the path says 'gaussian'"),
        ("epoch: 3", "parameter 'epoch' unknown"),
        ("epochs: -3", "epochs must be"),
        ("lr: '0.1'", "lr must be a number above 0, got '0.1' (a text: write it without quotes)"),
    ],
)
def test_a_bad_file_is_named(home, text, words):
    path = home / "params" / "tiny" / "gaussian.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"gaussian\.yaml") as caught:
        load("tiny", "gaussian")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_file_may_name_a_mapping_and_an_entry_of_it_in_any_order(home):
    path = home / "params" / "tiny" / "gaussian.yaml"
    entry, whole = "grids.softad: [0.2]\n", "grids: {softad: [0.1], sam: [0.3]}\n"
    for text in (entry + whole, whole + entry):
        path.write_text(text)
        assert load("tiny", "gaussian").grids == {"softad": (0.2,), "sam": (0.3,)}


def test_hidden_files_and_folders_are_no_profiles(home):
    """JupyterLab, editors and macOS leave such ones beside the files that they save."""
    (home / "params" / ".ipynb_checkpoints").mkdir()
    (home / "params" / "tiny" / "._gaussian.yaml").write_bytes(b"\0\1")
    assert profile_names() == ["tiny"]
    assert datasets_of("tiny") == ["gaussian"]


def test_a_profile_without_a_file_is_refused(home):
    (home / "params" / "mine").mkdir()
    (home / "params" / "mine" / "gaussian.yml").write_text("epochs: 3\n")
    with pytest.raises(UserError, match=r"mine has no DATASET\.yaml; copy one"):
        datasets_of("mine")


def test_a_word_in_place_of_a_number_has_no_advice_on_quotes(home):
    with pytest.raises(UserError, match=r"lr must be a number above 0, got 'fast'$"):
        load("tiny", "gaussian", {"lr": "fast"})


def test_every_committed_profile_is_sound():

    for profile in ("smoke", "quick", "paper"):
        for dataset in ("gaussian", "sinusoid", "spiral"):
            p = load(profile, dataset)
            assert set(p.methods) == set(PAPER)
    paper, quick = load("paper", "gaussian"), load("quick", "gaussian")
    assert (paper.trials, paper.epochs, paper.batch_size, paper.lr) == (15, 500, 50, 1e-3)
    assert (quick.trials >= 3, quick.epochs >= 150) == (True, True)
    for method, grid in quick.grids.items():
        assert len(grid) >= 6
        assert set(grid) <= set(paper.grids[method]), "quick sweeps values of the paper's grid"


def test_fingerprints_of_all_profiles_are_those_of_the_stored_results():
    """A changed hash sets every stored result aside; change the list only where that is meant."""
    frozen = json.loads((REPOSITORY / "tests/training/fingerprints.json").read_text())
    profiles = {name.split("/")[0] for name in frozen}  # profiles of one's own are not in the list
    names = [(profile, dataset) for profile in sorted(profiles) for dataset in datasets_of(profile)]
    for method in ("erm", "softad", "sam", "adaflood"):
        assert {f"{p}/{d}": load(p, d).fingerprint(method) for p, d in names} == frozen


def test_a_file_holds_what_differs_from_the_one_it_extends(home):
    params = home / "params"
    other = params / "tiny" / "spiral.yaml"
    other.write_text("extends: tiny/gaussian\nlr: 1e-2\ngrids.sam: [0.5, 1e-1]\n")
    base, child = load("tiny", "gaussian"), load("tiny", "spiral")
    grids = {**base.grids, "sam": (0.1, 0.5)}
    assert child == base.replace(dataset="spiral", lr=0.01, grids=grids)
    (params / "other").mkdir()
    third = params / "other" / "spiral.yaml"
    third.write_text("extends: tiny/spiral\ngrids: {sam: [1]}\ngrids.softad: 1e2\n")
    with pytest.raises(UserError, match=r"spiral\.yaml: grids.softad must be a list of numbers, "):
        load("other", "spiral")
    third.write_text("extends: tiny/spiral\ngrids.softad: null\nsettings.softad.sigma: 2\n")
    last = load("other", "spiral", {"grids.sam": [3.0], "settings.softad.scale": "text"})
    assert last.grids == {"sam": (3.0,)}
    assert last.settings_of("softad") == {"sigma": 2.0, "eta": 1.0, "scale": "text"}
    assert (last.lr, last.profile, last.dataset) == (0.01, "other", "spiral")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("extends: tiny/gaussian", "extends 'tiny/gaussian', which extends it in turn"),
        ("extends: tiny/spiral", "extends 'tiny/gaussian', which extends it in turn"),
        ("extends: tiny/moons", "extends 'tiny/moons', but "),
        ("extends: 3", "is not there; name it PROFILE/DATASET"),
        ("lr.rate: 3", "lr must be a number above 0, got {'rate': 3}"),
    ],
)
def test_what_cannot_be_extended_is_one_line(home, text, words):
    params = home / "params"
    (params / "tiny" / "spiral.yaml").write_text("extends: tiny/gaussian\n")
    (params / "tiny" / "gaussian.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        load("tiny", "gaussian")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
