"""`softad show`, the tables of params/README.md and the schema that editors read."""

import json
import time

import jsonschema
import pytest
from helpers.workspace import REPOSITORY, TINY

from softadlib._validation import UserError
from softadlib.methods import METHODS
from softadlib.workbook import cli
from softadlib.workbook.pages import reference, show
from softadlib.workbook.studies.params import parse_yaml, read_yaml
from softadlib.workbook.studies.protocol import Protocol


def printed(capsys, *argv):
    """Return the lines that `softad show ARGV` prints."""
    assert cli.main(["show", *argv]) == 0
    return capsys.readouterr().out.splitlines()


def test_profiles_and_how_much_of_each_is_finished(home, capsys):
    (home / "params/empty").mkdir()
    (home / "params/.ipynb_checkpoints").mkdir()
    assert cli.main(["train", "tiny", "--method", "erm", "-j", "1"]) == 0
    lines = [line.split(maxsplit=2) for line in printed(capsys)]
    assert lines == [
        ["profile", "finished", "datasets"],
        ["empty", "0", "none: no DATASET.yaml"],
        ["tiny", "1", "gaussian"],
    ]
    stored = home / "outputs/tiny/gaussian/erm.parquet"
    stored.write_bytes(b"no parquet")
    assert printed(capsys)[-1].split() == ["tiny", "broken", "gaussian"]


def test_what_is_done_and_what_is_left(home, capsys):
    assert printed(capsys, "tiny")[1:] == [
        "gaussian  erm     0 of 1  0 of 2  0 of 2  4       0%    –",
        "gaussian  sam     0 of 1  0 of 2  0 of 2  4       0%    –",
        "gaussian  softad  0 of 2  0 of 2  0 of 4  4       0%    –",
        "10 trainings are left",  # 8 runs, and the curves of softad's two selected ones
    ]
    softad = ["train", "tiny", "--method", "softad", "-j", "1"]
    assert cli.main([*softad, "-p", "curves=none"]) == 0
    line = printed(capsys, "tiny", "--method", "softad")[1].split()
    assert line[5] == "4"
    assert line[6] == "66%", "4 of 4 runs without their 2 curves"
    lines = printed(capsys, "tiny", "--method", "softad", "-p", "epochs=3")
    assert lines[-1] == "6 trainings are left", "what is stored has 4 epochs"
    assert cli.main(softad) == 0
    lines = printed(capsys, "tiny", "--method", "softad")
    assert lines[1].split()[6:] == ["100%", "0.0"]
    assert lines[-1] == "everything is trained"
    for change in ("settings.fdgr.scheme=centered", "grids.sam=[0.1, 0.2]"):
        lines = printed(capsys, "tiny", "--method", "softad", "-p", change)
        assert lines[-1] == "everything is trained", "what is of another method changes nothing"
    values = read_yaml(home / "params/tiny/gaussian.yaml") | {"grids": {"sam": [0.1]}}
    (home / "params/tiny/gaussian.yaml").write_text(json.dumps(values))
    assert printed(capsys, "tiny")[-1] == "also stored: gaussian × softad, 2 trials"


def test_a_study_may_hold_a_part_of_its_grid_and_values_beside_it(home, capsys):
    part = ["-p", "grids.softad=[0.05]", "-p", "trials=1", "-j", "1"]
    assert cli.main(["train", "tiny", "--method", "softad", *part]) == 0
    line = printed(capsys, "tiny", "--method", "softad")[1]
    assert line.startswith("gaussian  softad  1 of 2  1 of 2  1 of 4")
    lines = printed(capsys, "tiny", "--method", "softad", "-p", "grids.softad=[0.3]")
    assert lines[1].startswith("gaussian  softad  0 of 1  0 of 2  0 of 2")
    other = "also stored: gaussian × softad, 1 run of other values, trials or label noises"
    assert lines[-1] == other


def test_of_many_studies_a_finished_dataset_is_one_line(home, capsys, monkeypatch):
    values = read_yaml(home / "params/tiny/gaussian.yaml") | {"dataset": "spiral"}
    (home / "params/tiny/spiral.yaml").write_text(json.dumps(values))
    methods = ["--method", "erm,sam"]
    assert cli.main(["train", "tiny", "--dataset", "gaussian", *methods, "-j", "1"]) == 0
    assert cli.main(["train", "tiny", "--dataset", "spiral", "--method", "erm", "-j", "1"]) == 0
    monkeypatch.setattr(show, "LISTED_ONE_BY_ONE", 3)
    gaussian, erm, sam, left = printed(capsys, "tiny", *methods)[1:]
    assert gaussian.split()[:6] == ["gaussian", "2", "methods", "1", "2", "4"]
    assert "100%" in gaussian
    assert [erm.split()[:2], sam.split()[:2]] == [["spiral", "erm"], ["spiral", "sam"]]
    assert left == "2 trainings are left"


def test_parameters_are_those_that_differ_from_the_default(home, capsys):
    changed = ["-p", "settings.softad.sigma=2", "--parameters", "--method", "softad"]
    lines = printed(capsys, "tiny", *changed)
    values = parse_yaml("\n".join(lines[lines.index("") + 1 :]))["gaussian"]
    known = {name: value for name, value in TINY.items() if name != "grids"}
    assert values == {**known, "settings.softad.sigma": 2.0, "grids.softad": [0.05, 0.3]}


def test_a_profile_is_shown_in_seconds():
    """Seconds of a processor, since others use the cores meanwhile; torch is imported already."""
    began = time.process_time()
    assert cli.main(["show", "paper"]) == 0
    assert time.process_time() - began < 4


# params/


def test_the_reference_and_the_schema_are_current():
    """Otherwise: python -m softadlib.workbook.pages.reference."""
    params = REPOSITORY / "params"
    assert (params / "schema.json").read_text(encoding="utf-8") == reference.schema()
    text = (params / "README.md").read_text(encoding="utf-8")
    between = text.split(reference.MARKS[0])[1].split(reference.MARKS[1])[0]
    assert between.strip() == reference.tables().strip()
    for name in Protocol.names():
        assert f"| `{name}` |" in between
    for method in METHODS.values():
        assert not method.hyperparameter or f"| `{method.name}` ({method.label}) |" in between


SCHEMA = json.loads(reference.schema())
CHECKER = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)
FILES = sorted((REPOSITORY / "params").glob("*/*.yaml"))


def test_the_schema_accepts_every_profile():
    for path in FILES:
        assert [error.message for error in CHECKER.iter_errors(read_yaml(path))] == [], path


GOOD = [
    {"grids": {"softad": 0.1}},
    {"grids.softad": None},
    {"label_noise": 0.1},
    {"extends": "a/b"},
]
WRONG = [
    {"epoch": 3},
    {"epochs": 0},
    {"epochs": "many"},
    {"label_noise": 2},
    {"model": "mlp"},
    {"grids": {"softda": [1]}},
    {"grids": {"softad": "0.1"}},
    {"settings": {"softad": {"sgima": 2}}},
]


@pytest.mark.parametrize("values", GOOD + WRONG, ids=str)
def test_the_schema_refuses_what_the_protocol_refuses(values):
    assert CHECKER.is_valid(values) == (values in GOOD)
    if values in WRONG:
        with pytest.raises(UserError):
            Protocol(**{"profile": "tiny", "dataset": "gaussian", **TINY, **values})


def test_results_of_a_table_that_was_moved_are_shown_and_drawn(home, capsys):
    file = home / "mine.csv"
    file.write_text("a,b,y\n" + "".join(f"{i},{i * i % 7},{i % 2}\n" for i in range(80)))
    (home / "params/tiny/gaussian.yaml").unlink()
    values = {**TINY, "profile": "tiny", "dataset": "mine", "table": str(file)}
    (home / "params/tiny/mine.yaml").write_text(json.dumps(values))
    assert cli.main(["train", "tiny", "--method", "erm,sam", "-j", "1"]) == 0
    before = printed(capsys, "tiny")
    file.rename(home / "moved.csv")
    assert printed(capsys, "tiny") == before
    assert cli.main(["draw", "tiny", "--dry-run"]) == 0
    assert cli.main(["train", "tiny", "-j", "1"]) == 2
    assert f"table '{file}' is no file under" in capsys.readouterr().err
