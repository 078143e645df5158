"""Protocols: the runs they ask for, what is refused and in which words, files, fingerprints."""

import json
import math

import pytest
from helpers.workspace import REPOSITORY, TINY

from softadlib._validation import MissingData, UserError
from softadlib.methods import METHODS, PAPER
from softadlib.workbook.studies.params import (
    datasets_of,
    load,
    merge,
    parse_yaml,
    profile_names,
    write_profile,
)
from softadlib.workbook.studies.protocol import Protocol, Run
from softadlib.workbook.studies.read import finished
from softadlib.workbook.studies.seeds import trial_seeds
from softadlib.workbook.studies.sweep import Sweep

FROZEN = REPOSITORY / "tests/workbook/studies/fingerprints.json"


def protocol(**changes):
    return Protocol(**{"profile": "tiny", "dataset": "gaussian", **TINY, **changes})


def other_settings(method):
    """Changes of a protocol, each of one setting of a method to another value."""
    for name, setting in METHODS[method].settings.items():
        value = setting.choices[-1] if setting.choices else setting.default + 1
        yield {"settings": {method: {name: value}}}


def test_runs_are_noise_times_trials_times_grid():
    made = protocol(label_noise=[0.0, 0.1], trials=3, grids={"softad": [0.3, 0.1]})
    runs = made.runs("softad")
    assert len(runs) == 2 * 3 * 2
    assert runs[0] == Run("softad", 0.0, 0, 0.1), "grids are sorted"
    assert {r.trial for r in runs} == {0, 1, 2}
    erm = made.runs("erm")
    assert len(erm) == 2 * 3
    assert all(math.isnan(r.knob) for r in erm)
    assert erm[0].key == (0.0, 0, None)
    assert made.methods == ("erm", "softad")
    assert protocol(grids={}).methods == ("erm",)


@pytest.mark.parametrize(
    ("grid", "values"),
    [
        (0.25, (0.25,)),
        (1, (1.0,)),
        ([1.0, -1.0], (-1.0, 1.0)),
        ({"linspace": [-1, 1, 3]}, (-1.0, 0.0, 1.0)),
    ],
)
def test_a_grid_is_a_number_a_list_or_a_linspace(grid, values):
    assert protocol(grids={"tilted": grid}).grids["tilted"] == values


def test_seeds_are_the_authors_and_a_prefix():
    assert trial_seeds(5) == (17716, 961412, 457707, 491380, 1029701)
    assert trial_seeds(15)[:5] == trial_seeds(5)


def test_another_base_seed_gives_other_trials_and_another_order_only_other_batches():
    assert protocol().order_seeds == protocol().seeds
    other = protocol(base_seed=22993514079364)
    assert not set(other.seeds) & set(protocol().seeds)
    orders = [protocol(batch_order=order) for order in range(4)]
    assert {made.seeds for made in orders} == {protocol().seeds}
    seeds = [seed for made in orders for seed in made.order_seeds]
    assert len(set(seeds)) == len(seeds)
    # A seed is below 2²⁰: whatever the trials, no order shares a seed with another one.
    assert orders[3].order_seeds[:2] == (17716 + 3 * 2**20, 961412 + 3 * 2**20)


def test_losses_of_single_samples_are_measured_at_quarters_of_the_curve():
    assert protocol(epochs=100, curve_every=10).loss_epochs == {0, 20, 50, 80, 100}
    assert protocol(epochs=500, curve_every=1).loss_epochs == {0, 125, 250, 375, 500}
    assert protocol(epochs=1, curve_every=1).loss_epochs == {0, 1}


# Fingerprints


def test_a_fingerprint_changes_with_what_a_run_does_and_with_nothing_else():
    same = [{"trials": 9}, {"grids": {"sam": [1.0]}}, {"device": "cpu"}, {"ties": "smallest"},
            {"curve_every": 3}, {"profile": "other"}, {"label_noise": [0.1]}, {"checkpoint_every": 3},
            {"curves": "all"}, {"convolutional_at_once": 4}]  # fmt: skip
    other = [{"lr": 0.2}, {"epochs": 5}, {"dtype": "float32"}, {"batch_size": 20},
             {"dataset": "spiral"}, {"n_test": 60}, {"weight_decay": 0.1}, {"momentum": 0.9},
             {"optimizer": "adam"}, {"optimizer": "adamw"}, {"lr_schedule": "cosine"},
             {"best_epoch": True}, {"best_epoch": True, "closed_form": True}, {"model": "mlp4x500"},
             {"base_seed": 1}, {"batch_order": 1}, {"batch_order": "authors"}]  # fmt: skip
    plain = {method: protocol().fingerprint(method) for method in METHODS}
    assert len(set(plain.values())) == len(METHODS)
    settings = {method: list(other_settings(method)) for method in METHODS}
    for method in METHODS:
        foreign = [change for m in METHODS if m != method for change in settings[m]]
        assert {protocol(**c).fingerprint(method) for c in same + foreign} == {plain[method]}
        own = other + settings[method]
        changed = {protocol(**c).fingerprint(method) for c in own}
        assert plain[method] not in changed
        assert len(changed) == len(own)


def test_fingerprints_of_the_profiles_do_not_move():
    """A changed one sets stored results aside: change the list only where that is meant."""
    frozen = json.loads(FROZEN.read_text())
    found = {}
    for name in frozen:
        profile, dataset, method = name.split("/")
        found[name] = load(profile, dataset).fingerprint(method)
    assert found == frozen


def of_today(protocol):
    """Return a stored protocol without the methods that are gone."""
    kept = {name: values for name, values in protocol["settings"].items() if name in METHODS}
    grids = {name: values for name, values in protocol["grids"].items() if name in METHODS}
    return Protocol(**protocol | {"settings": kept, "grids": grids})


STORED = ["smoke", "paper", "fashion-40", "label-noise", "beyond", "rivals", "images"]


@pytest.mark.parametrize("profile", STORED)
def test_stored_results_have_the_protocol_of_their_profile(profile, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(REPOSITORY))
    studies = finished(profile)
    assert studies
    for study, provenance in studies.items():
        if study.method not in METHODS:  # of an earlier version
            continue
        stored, asked = of_today(provenance.protocol), load(profile, study.dataset)
        assert stored.fingerprint(study.method) == provenance.fingerprint
        assert asked.fingerprint(study.method) == provenance.fingerprint, study
        assert asked.differences(provenance.protocol, study.method) == []


def test_a_stored_protocol_without_a_field_was_trained_with_its_default():
    stored = load("smoke", "gaussian").to_dict()
    del stored["closed_form"]
    now = Protocol(**stored)
    assert now.differences(stored, "softad") == []
    other = now.replace(best_epoch=True, closed_form=True)
    assert "closed_form True, stored False" in other.differences(stored, "softad")


def test_stored_results_are_found_by_a_field_of_an_older_name(monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(REPOSITORY))
    asked = load("link", "gaussian")
    for study, provenance in finished("link", "gaussian").items():
        assert provenance.protocol["closed_form"] is True, "stored as `linked`"
        assert asked.fingerprint(study.method) == provenance.fingerprint
        assert asked.differences(provenance.protocol, study.method) == []


def test_the_committed_profiles_are_the_papers():
    for profile in ("smoke", "paper"):
        for dataset in ("sinusoid", "spiral"):
            assert set(load(profile, dataset).methods) == set(PAPER)
    for dataset in ("spiral", "digits"):
        assert load("quick", dataset).methods == ("erm", "sam", "softad")
    paper, quick = load("paper", "spiral"), load("quick", "spiral")
    assert (paper.trials, paper.epochs, paper.batch_size, paper.lr) == (15, 500, 50, 1e-3)
    for method, grid in quick.grids.items():
        assert set(grid) <= set(paper.grids[method]), "quick sweeps values of the paper's grid"
    precision = {name: load("paper", name).precision for name in datasets_of("paper")}
    assert {n for n, v in precision.items() if v == "tf32"} == {"svhn", "cifar10", "cifar100"}


def test_what_a_sweep_holds_chooses_runs_and_a_fingerprint_has_all_the_rest():
    made = protocol(label_noise=[0.0, 0.1], trials=3)
    which = {name: getattr(made, name) for name in Sweep.names()}
    assert Sweep(**which).runs("softad") == made.runs("softad")
    assert not {"lr", "epochs", "dataset", "settings"} & set(Sweep.names())


# Bad values

BAD = [
    ("dataset", "moons"), ("model", "resnet99"), ("optimizer", "lion"), ("best_epoch", "yes"),
    ("ties", "median"), ("profile", "../up"), ("lr", 0), ("lr", math.nan), ("lr", "fast"),
    ("momentum", 1.5), ("epochs", 2.5), ("epochs", True), ("epochs", 10**22), ("trials", 0),
    ("batch_size", 1), ("n_train", 0), ("n_test", 10**12), ("checkpoint_every", "often"),
    ("label_noise", 1.2), ("label_noise", [0.1, 0.1]), ("settings.softad.scale", "paper"),
    ("settings.softad.sigma", 0), ("settings.softad.sigma", "1.0"), ("settings.softad", 3),
    ("settings.fdgr.step_size", 0), ("grids", "softad"), ("grids.softad", [0.1, -0.2]),
    ("grids.softad", True), ("grids.softad", [math.nan]), ("grids.softad", [0.1, 0.1]),
    ("grids.cvar", [0.5, 1.0]), ("grids.softad", {"logspace": [0.1, 0.2, 3]}),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), BAD, ids=str)
def test_bad_values_are_one_line_with_name_and_value(key, value):
    with pytest.raises(UserError) as caught:
        Protocol(**merge(TINY, {"profile": "tiny", "dataset": "gaussian", key: value}))
    message = str(caught.value)
    assert "\n" not in message
    assert key.split(".")[-1] in message
    assert str(value[-1] if isinstance(value, list) else value) in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 0}, "epochs: input should be greater than or equal to 1, got 0"),
        ({"lr": "fast"}, "lr: input should be a valid number, got 'fast'"),
        (
            {"checkpoint_every": -1},
            "input should be 'auto' or input should be greater than or equal to 0, got -1",
        ),
        ({"optimizer": "lion"}, "optimizer: input should be 'adam', 'adamw' or 'sgd', got 'lion'"),
        ({"epoch": 3}, "parameter 'epoch' unknown; .*; did you mean 'epochs'?"),
        ({"best_epochs": True}, "; did you mean 'best_epoch'?"),
        ({"grids": {"softda": [1]}}, "did you mean 'softad'?"),
        ({"grids": {"erm": [1]}}, "method in grids 'erm' unknown"),
        ({"grids": {"softad": []}}, "grids.softad is empty; give at least one theta"),
        ({"grids": {"softad": {"linspace": [1, 2, 0]}}}, "grids.softad count must be .* got 0"),
        ({"settings": {"erm": {"sigma": 1}}}, "method in settings 'erm' unknown"),
        ({"settings": {"softad": {"theta": 1}}}, "setting of softad 'theta' unknown"),
        ({"momentum": 0.9, "optimizer": "adamw"}, "only sgd has momentum; give 0 for adamw, got 0.9"),
        ({"optimizer": "sgd", "grids": {"msam": [1]}}, "msam perturbs along the momentum"),
        ({"precision": "bf16"}, "precision bf16 is for dtype float32, got float64"),
        ({"n_train": 21}, "n_train must be even for gaussian"),
        ({"n_train": 21, "dataset": "sinusoid"}, "batch_size 10 leaves a last batch of one of 21"),
        ({"table": "a.csv"}, "table is for your own data, 'gaussian' is a known set"),
        ({"target": "y"}, "target is the class column of a table; gaussian has none"),
        ({"folder": "a"}, "folder is for your own data, 'gaussian' is a known set"),
        ({"dataset": "pets", "folder": "a", "table": "b"}, "folder and table are two sets of data"),
        ({"dataset": "digits", "label_noise": 0.1}, "label_noise is for synthetic sets and tables"),
        ({"grids": {"softad-width": [0, 1]}}, "sigma in grids.softad-width .* least 1e-12, got 0"),
        ({"linked": True}, "parameter 'linked' is called 'closed_form' now"),
        ({"closed_form": True}, "closed_form .* set best_epoch: true"),
        ({"grids": {"softad": {"linspace": [-1, 1, 3]}}}, "theta in grids.softad must be .* least 0"),
    ],
)  # fmt: skip
def test_messages(changes, words):
    pattern = words.replace("?", r"\?").replace("(", r"\(")
    with pytest.raises(UserError, match=pattern):
        protocol(**changes)


def test_a_missing_field_a_missing_dataset_and_an_unknown_method():
    with pytest.raises(UserError, match="parameter 'dataset' is missing"):
        Protocol(profile="tiny")
    with pytest.raises(MissingData, match="table: FILE in the profile"):
        protocol(dataset="moons")
    with pytest.raises(UserError, match=r"method 'ishida' unknown; choose from erm, sam, softad"):
        protocol().runs("ishida")


def test_round_trip_through_plain_values(tmp_path):
    made = protocol(label_noise=[0.0, 0.05], best_epoch=True, lr_schedule="cosine")
    assert Protocol(**made.to_dict()) == made
    write_profile(tmp_path / "made.yaml", made.to_dict())
    assert Protocol(**parse_yaml((tmp_path / "made.yaml").read_text())) == made
    assert made.replace(epochs=9).epochs == 9


def test_a_table_of_ones_own_is_fingerprinted_by_its_content(home):
    rows = [f"{i},{-i},{i % 2}" for i in range(60)]
    prints = []
    for name, lines in (("a", rows), ("b", rows), ("c", [*rows[:-1], "7,7,1"])):
        (home / f"{name}.csv").write_text("\n".join(["u,v,kind", *lines]))
        made = protocol(dataset="mine", table=f"{name}.csv", target="kind")
        prints.append(made.fingerprint("erm"))
    assert prints[0] == prints[1] != prints[2]
    two_columns = [f"{i},{i % 2},{i % 3}" for i in range(60)]
    (home / "d.csv").write_text("\n".join(["u,a,b", *two_columns]))
    of_columns = [protocol(dataset="mine", table="d.csv", target=name) for name in ("a", "b")]
    assert len({made.fingerprint("erm") for made in of_columns}) == 2
    assert protocol(dataset="mine", table="a.csv", label_noise=0.1).label_noise == (0.1,)


# Files


def test_load_reads_overrides_and_refuses_what_does_not_fit(home, tmp_path, monkeypatch):
    assert load("tiny", "gaussian", {"epochs": 2}).epochs == 2
    for dataset, overrides, words in (
        ("moons", None, "dataset 'moons' unknown; choose from gaussian"),
        ("gaussian", {"dataset": "spiral"}, "parameter 'dataset' unknown"),
    ):
        with pytest.raises(UserError, match=words):
            load("tiny", dataset, overrides)
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path / "params"))  # no workbook
    with pytest.raises(UserError, match="no profiles under"):
        datasets_of("tiny")


def test_numbers_of_yaml_are_decimal():
    """YAML 1.2; version 1.1 reads 010 as 8, 1:30 as 90, yes as true and 1e2 as a text."""
    assert parse_yaml("[1e2, 010, 1:30, yes, -.5e-3]") == [100.0, 10, "1:30", "yes", -0.0005]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epochs: [1, 2\nlr: 3", "gaussian.yaml, line 2: broken YAML"),
        ("lr: 0.1\nepochs: 3\nlr: 0.2", 'line 3: broken YAML (found duplicate key "lr"'),
        ("lr: 0.1\nlr.x: 1", "lr.x cannot be set: lr is 0.1, no mapping"),
        (
            "grids: {softad: [0.1]}\ngrids.softda: null",
            "choose from softad; did you mean 'softad'?",
        ),
        ("- a\n- b", "must hold `name: value` lines, got list"),
        ("profile: other\ndataset: gaussian", "profile is 'other' but the path says 'tiny'"),
        ("epoch: 3", "did you mean 'epochs'?"),
        ("lr: '0.1'", "lr: input should be a valid number, got '0.1'"),
        ("extends: tiny/spiral", "extends 'tiny/gaussian', which extends it in turn"),
        ("extends: tiny/moons", "extends 'tiny/moons', but "),
        ("extends: 3", "is not there; name it PROFILE/DATASET"),
        ("extends: ../outside", "extends '../outside', which leads out of "),
        ("extends: /etc/hosts", "extends '/etc/hosts', which leads out of "),
        ("methods: none.py", "none.py is no Python file"),
    ],
)
def test_a_bad_file_is_named_in_one_line(home, text, words):
    (home / "params" / "tiny" / "spiral.yaml").write_text("extends: tiny/gaussian\n")
    (home / "params" / "tiny" / "gaussian.yaml").write_text(text)
    with pytest.raises(UserError, match=r"\.yaml") as caught:
        load("tiny", "gaussian")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_holds_what_differs_from_the_one_it_extends(home):
    params = home / "params"
    other = params / "tiny" / "spiral.yaml"
    other.write_text("extends: tiny/gaussian\nlr: 1e-2\ngrids.sam: [0.5, 1e-1]\n")
    base, child = load("tiny", "gaussian"), load("tiny", "spiral")
    grids = {**base.grids, "sam": (0.1, 0.5)}
    assert child == base.replace(dataset="spiral", lr=0.01, grids=grids)
    (params / "other").mkdir()
    third = params / "other" / "spiral.yaml"
    third.write_text("extends: tiny/spiral\ngrids.softad: null\nsettings.softad.sigma: 2\n")
    last = load("other", "spiral", {"grids.sam": 3.0, "settings.softad.scale": "text"})
    assert last.grids == {"sam": (3.0,)}
    assert last.settings_of("softad") == {"sigma": 2.0, "eta": 1.0, "scale": "text"}
    assert (last.lr, last.profile, last.dataset) == (0.01, "other", "spiral")
    entry, whole = "grids.softad: [0.2]\n", "grids: {softad: [0.1], sam: [0.3]}\n"
    for text in (entry + whole, whole + entry):  # in any order
        third.write_text(text)
        assert load("other", "spiral").grids == {"softad": (0.2,), "sam": (0.3,)}


def test_hidden_files_are_no_profiles_and_a_profile_without_a_file_is_refused(home):
    """JupyterLab, editors and macOS leave hidden ones beside the files that they save."""
    (home / "params" / ".ipynb_checkpoints").mkdir()
    (home / "params" / "tiny" / "._gaussian.yaml").write_bytes(b"\0\1")
    assert profile_names() == ["tiny"]
    assert datasets_of("tiny") == ["gaussian"]
    (home / "params" / "mine").mkdir()
    with pytest.raises(UserError, match=r"mine has no DATASET\.yaml .*; copy one"):
        datasets_of("mine")


def test_a_registered_method_without_a_grid_is_told_where_to_add_one():
    with pytest.raises(
        UserError, match=r"'tilted' has no grid for \w+ in profile .*grids\.tilted: \["
    ):
        protocol(grids={"softad": [0.1]}).select_methods(["tilted"])
    with pytest.raises(UserError, match="did you mean 'softad'"):
        protocol(grids={"softad": [0.1]}).select_methods(["sofad"])
