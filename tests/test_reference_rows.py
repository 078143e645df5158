"""The rows that are kept in the repository: nothing of them is trained again, and it would give the same."""

import numpy as np
import pytest
from helpers.workspace import REPOSITORY, tree

from softadlib.trainer.evaluation import MEASURES
from softadlib.workbook import cli
from softadlib.workbook.studies import results
from softadlib.workbook.studies.params import load
from softadlib.workbook.studies.schema import RUN_KEY
from softadlib.workbook.studies.train_runs import train_runs
from softadlib.workbook.studies.work import plan_work


@pytest.fixture(autouse=True)
def repository(monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(REPOSITORY))


def stored_files(profile):
    files = tree(REPOSITORY / "outputs" / profile)
    return {name: changed for name, changed in files.items() if not name.endswith(".lock")}


@pytest.mark.parametrize("method", ["erm", "softad"])
def test_a_stored_study_of_profile_paper_is_neither_trained_nor_written_again(method, capsys):
    before = stored_files("paper")
    assert cli.main(["train", "paper", "--dataset", "gaussian", "--method", method]) == 0
    assert stored_files("paper") == before
    assert "run/s" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("dataset", "method"), [("gaussian", "softad"), ("spiral", "sam"), ("digits", "erm")]
)
def test_stored_rows_of_profile_smoke_trained_anew_are_equal(dataset, method):
    """In float64, on any processor: to 1e-12 of every measure, at every stored epoch."""
    protocol = load("smoke", dataset, {"device": "cpu"})
    runs = protocol.runs(method)[-2:]
    rows = train_runs(protocol, runs, protocol.curve_epochs)
    keys = ["method", *RUN_KEY, "epoch"]
    both = rows.merge(results.read("smoke", dataset), on=keys, suffixes=("", "_stored"))
    assert len(both) >= len(runs)
    stored = both[[f"{measure}_stored" for measure in MEASURES]]
    np.testing.assert_allclose(both[list(MEASURES)], stored, rtol=1e-12, atol=1e-12)


def test_nothing_of_profile_smoke_is_left_to_train():
    studies = plan_work("smoke").studies
    assert len(studies) == 20
    assert [study.name for study in studies if not study.finished] == []
