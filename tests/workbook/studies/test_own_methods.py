"""A file of methods that a profile names: trained, in other processes too, without editing the library."""

import numpy as np
import pandas as pd
import pytest
from helpers.protocols import train

from softadlib._validation import UserError
from softadlib.methods import METHODS
from softadlib.workbook import cli
from softadlib.workbook.studies import own_methods, results
from softadlib.workbook.studies.params import load

CUBIC = """
from softadlib.methods import METHODS, Method

def mean_power(losses, power):
    return (losses**power).mean()

METHODS["cubic"] = Method("cubic", "Cubic", hyperparameter="power", objective=mean_power)
"""


@pytest.fixture(autouse=True)
def registry(home, monkeypatch):
    monkeypatch.setattr(own_methods, "_MODULES", {})
    before = dict(METHODS)
    (home / "my_methods.py").write_text(CUBIC)
    (home / "params/mine").mkdir()
    text = "extends: tiny/gaussian\nmethods: my_methods.py\ngrids: {cubic: [1.0, 3.0]}\n"
    (home / "params/mine/gaussian.yaml").write_text(text)
    yield
    METHODS.clear()
    METHODS.update(before)


def test_a_method_of_a_file_is_trained_by_the_command():
    assert cli.main(["train", "mine", "--method", "cubic,erm", "-j", "2"]) == 0
    rows = results.read("mine", final=True)
    erm = rows[rows["method"] == "erm"].reset_index(drop=True)
    same = rows[rows["knob"] == 1.0].reset_index(drop=True)
    np.testing.assert_allclose(same["loss_test"], erm["loss_test"], rtol=1e-12)
    assert (rows.loc[rows["knob"] == 3.0, "loss_test"].to_numpy() != erm["loss_test"]).all()


def test_results_of_a_method_that_is_not_registered_are_read_and_named():
    rows = train(load("mine", "gaussian"), "cubic")
    train(load("mine", "gaussian"), "erm")
    del METHODS["cubic"]
    stored = results.read("mine")
    assert set(stored["method"]) == {"cubic", "erm"}
    pd.testing.assert_frame_equal(stored[stored["method"] == "cubic"], rows)
    assert results.provenances("mine")["method"].tolist() == ["erm", "cubic"]
    from softadlib.workbook.analysis import report_tables

    assert "| gaussian | cubic |" in report_tables.text("mine")


def test_a_changed_file_is_another_protocol(home, monkeypatch):
    first = load("mine", "gaussian").fingerprint("cubic")
    erm = load("mine", "gaussian").fingerprint("erm")
    (home / "my_methods.py").write_text(CUBIC + "# changed")
    assert load("mine", "gaussian").fingerprint("cubic") != first
    assert load("mine", "gaussian").fingerprint("erm") == erm


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "adds no method"),
        ("1/0", "ZeroDivisionError"),
        (CUBIC.replace("cubic", "softad"), "replaces 'softad'; choose another name"),
    ],
)
def test_a_file_that_adds_nothing_fails_or_replaces_is_refused(home, text, words):
    (home / "my_methods.py").write_text(text)
    before = dict(METHODS)
    with pytest.raises(UserError, match=words):
        load("mine", "gaussian")
    assert before == METHODS


def test_a_file_of_methods_is_no_change_of_a_command(capsys):
    assert cli.main(["train", "mine", "-p", "methods=my_methods.py"]) == 2
    assert "'methods' is a line of a profile's file alone" in capsys.readouterr().err
