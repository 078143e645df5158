"""A real MLflow store in a database file; what it holds is asked of its client and of sqlite."""

import dataclasses
import json
import math
import shutil
import sqlite3
import sys
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from helpers.workspace import make_home
from nbformat import v4

from softadlib._validation import UserError
from softadlib.results import reader as store
from softadlib.results import selection
from softadlib.results.folder import ResultFolder
from softadlib.results.schema import MEASURES, RUN_KEY
from softadlib.results.table import pack, unpack
from softadlib.workbook import cli, mlflow_export

# MLflow's own tables use what the newest SQLAlchemy will drop.
pytestmark = pytest.mark.filterwarnings("ignore:.*noload.*loader strategy is deprecated")
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A home with finished results: 2 noises × 2 trials × (1 + 1 + 2 knobs) = 16 trainings.

    Beside them an empty store, since MLflow takes seconds to make one.
    """
    home = make_home(tmp_path_factory.mktemp("trained"), gaussian={"label_noise": [0.0, 0.1]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTAD_HOME", str(home))
        patch.setenv("MLFLOW_LOGGING_LEVEL", "WARNING")
        assert cli.main(["train", "tiny", "-j", "1"]) == 0
        from mlflow.tracking import MlflowClient

        MlflowClient(f"sqlite:///{home}/outputs/mlflow.db").search_experiments()
    return home


@pytest.fixture
def home(trained, tmp_path, monkeypatch):
    copy = shutil.copytree(trained, tmp_path / "home")
    monkeypatch.setenv("SOFTAD_HOME", str(copy))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return copy


def counts(home):
    """Lines of every table that an export writes to, by sqlite itself."""
    tables = ("experiments", "runs", "params", "tags", "metrics", "latest_metrics")
    with sqlite3.connect(home / "outputs" / "mlflow.db") as database:
        return {t: database.execute(f"select count(*) from {t}").fetchone()[0] for t in tables}


def runs(home, experiment="tiny/gaussian", deleted=False, **tags):
    from mlflow.entities import ViewType
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{home}/outputs/mlflow.db")
    view = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY
    wanted = " and ".join(f"tags.`softad.{k}` = '{v}'" for k, v in tags.items())
    found = client.get_experiment_by_name(experiment)
    return client, client.search_runs([found.experiment_id], wanted, view, max_results=1000)


def test_every_training_arrives_with_parameters_metrics_and_provenance(home, capsys):
    assert cli.main(["export", "tiny", "--to", "mlflow"]) == 0
    out = capsys.readouterr().out
    assert "16 trainings sent, 0 there already" in out
    rows = store.read("tiny")
    client, found = runs(home, kind="training")
    assert len(found) == 16
    runs_of = rows.groupby(["method", *RUN_KEY], dropna=False)
    seen = set()
    for run in found:
        p = run.data.params
        knob = float(p["knob"]) if "knob" in p else math.nan
        key = (p["method"], float(p["label_noise"]), int(p["trial"]), knob)
        same = [
            rows[c].eq(v) | (rows[c].isna() & (v != v)) for c, v in zip(["method", *RUN_KEY], key)
        ]
        part = rows[np.logical_and.reduce(same)]
        seen.add(str(key))
        for measure in MEASURES:
            logged = {m.step: m.value for m in client.get_metric_history(run.info.run_id, measure)}
            assert logged == dict(zip(part["epoch"], part[measure]))
    assert len(seen) == len(runs_of) == 16
    (one,) = (
        r for r in found
        if r.data.params.items() >= {"method": "sam", "trial": "1", "label_noise": "0.1"}.items()
    )  # fmt: skip
    facts = json.loads((home / "outputs/tiny/gaussian/sam/provenance.json").read_text())
    assert one.data.params["radius"] == one.data.params["knob"] == "0.1"
    assert one.data.params["lr"] == "0.1"
    assert one.data.params["seed"] == str(facts["seeds"][1])
    assert one.info.run_name == "sam radius 0.1 noise 0.1 trial 1"
    assert one.info.status == "FINISHED"
    assert one.data.tags["softad.torch"] == facts["sessions"][-1]["torch"]
    assert one.data.tags["softad.fingerprint"] == facts["fingerprint"]
    _, (parent,) = runs(home, kind="method", method="sam")
    assert one.data.tags["mlflow.parentRunId"] == parent.info.run_id
    files = {f.path for f in client.list_artifacts(parent.info.run_id)}
    assert files == {"provenance.json", "metrics.parquet", "selected.parquet"}
    chosen = selection.select(rows)
    _, selected = runs(home, kind="training", selected="True")
    assert len(selected) == len(chosen) == 12
    clean = chosen[(chosen["method"] == "sam") & (chosen["label_noise"] == 0.0)]
    assert parent.data.metrics["acc_test-noise-0"] == pytest.approx(clean["acc_test"].mean())


def test_a_second_call_adds_and_repeats_nothing(home):
    first = mlflow_export.export("tiny")
    before = counts(home)
    again = mlflow_export.export("tiny")
    assert (first.logged, first.skipped) == (16, 0)
    assert (again.logged, again.skipped) == (0, 16)
    assert counts(home) == before
    # each row's seven numbers once, and the methods' means over the selected runs at each noise
    assert before["runs"] == 16 + 3
    assert before["metrics"] == 7 * len(store.read("tiny")) + 2 * (7 * 2 + 6)


def test_a_changed_result_is_logged_beside_the_earlier_one(home):
    mlflow_export.export("tiny")
    path = home / "outputs/tiny/gaussian/softad/metrics.parquet"
    rows, fingerprint = unpack(path)
    one = (rows["trial"] == 1) & (rows["knob"] == 0.05) & (rows["label_noise"] == 0.1)
    rows.loc[one & (rows["epoch"] == 4), "loss_test"] = 7.25
    path.write_bytes(pack(rows, fingerprint))
    sent = mlflow_export.export("tiny")
    assert (sent.logged, sent.skipped) == (8, 8), "the method whose table changed, the others not"
    _, methods = runs(home, kind="method", method="softad")
    assert len({run.data.tags["softad.digest"] for run in methods}) == len(methods) == 2
    _, found = runs(home, kind="training", method="softad")
    assert sum(run.data.metrics["loss_test"] == 7.25 for run in found) == 1
    assert mlflow_export.export("tiny").logged == 0


def test_an_export_that_was_cut_short_is_made_whole(home, monkeypatch):
    import mlflow

    log, calls = mlflow.log_params, []

    def fail(params):
        calls.append(params)
        if len(calls) == 6:
            raise OSError("the network is down")
        return log(params)

    monkeypatch.setattr(mlflow, "log_params", fail)
    with pytest.raises(UserError, match="the network is down"):
        mlflow_export.export("tiny")
    monkeypatch.setattr(mlflow, "log_params", log)
    sent = mlflow_export.export("tiny")
    assert sent.logged + sent.skipped == 16
    assert {r.info.status for r in runs(home)[1]} == {"FINISHED"}
    assert len(runs(home, kind="training")[1]) == 16
    assert len(runs(home, kind="method")[1]) == 3


def test_figures_and_report_arrive_as_files(home):
    figures = home / "outputs/tiny/figures"
    figures.mkdir()
    shown = [
        v4.new_output("display_data", data={"image/png": PICTURE}),
        v4.new_output("stream", text="x"),
    ]
    cells = [v4.new_code_cell("draw()", outputs=shown), v4.new_markdown_cell("read")]
    nbformat.write(v4.new_notebook(cells=cells), figures / "drawn.ipynb")
    (figures / "other.error.ipynb").write_text("{}")
    (home / "outputs/tiny/gaussian/erm/train.ipynb").write_text("{}")
    (home / "outputs/tiny/index.html").write_text("<p>one</p>")
    mlflow_export.export("tiny")
    client, (run,) = runs(home, "tiny")
    files = {f.path for f in client.list_artifacts(run.info.run_id, "figures")}
    assert files == {"figures/drawn.ipynb", "figures/drawn-1.png"}
    picture = client.download_artifacts(run.info.run_id, "figures/drawn-1.png", home)
    assert Path(picture).read_bytes().startswith(b"\x89PNG")
    _, (erm,) = runs(home, kind="method", method="erm")
    assert "train.ipynb" in {f.path for f in client.list_artifacts(erm.info.run_id)}
    mlflow_export.export("tiny")
    assert [r.info.run_id for r in runs(home, "tiny")[1]] == [run.info.run_id]
    (home / "outputs/tiny/index.html").write_text("<p>two</p>")
    mlflow_export.export("tiny")
    client, reports = runs(home, "tiny")
    assert len(reports) == 2
    (run,) = (r for r in reports if r.info.run_id != run.info.run_id)
    page = client.download_artifacts(run.info.run_id, "index.html", home)
    assert Path(page).read_text() == "<p>two</p>"


def test_a_diverged_training_is_marked(home):
    path = home / "outputs/tiny/gaussian/erm/metrics.parquet"
    rows, fingerprint = unpack(path)
    lost = (rows["trial"] == 0) & (rows["epoch"] == 4) & (rows["label_noise"] == 0.0)
    rows.loc[lost, list(MEASURES)] = float("nan")
    path.write_bytes(pack(rows, fingerprint))
    mlflow_export.export("tiny")
    _, (run,) = runs(home, kind="training", diverged="True")
    assert math.isnan(run.data.metrics["loss_test"])
    assert (run.data.params["method"], run.data.params["trial"]) == ("erm", "0")
    assert mlflow_export.export("tiny").skipped == 16


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("nosuch",), "nothing under"),
        (("tiny", "--uri", "file:///nowhere/runs"), "sqlite:///mlflow.db"),
        (("tiny", "--uri", "foo://x"), "unsupported URI 'foo://x'"),
        (("tiny", "--uri", "sqlite:////proc/nowhere/mlflow.db"), "No such file"),
    ],
)
def test_bad_arguments_are_one_line(home, capsys, argv, words):
    assert cli.main(["export", *argv]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert words in lines[0]


@pytest.mark.parametrize("package", ["mlflow", "sqlalchemy"])
def test_without_the_package_it_says_what_to_install(home, capsys, monkeypatch, package):
    for name in [n for n in sys.modules if n.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    if package == "mlflow":
        monkeypatch.setitem(sys.modules, "mlflow.exceptions", None)
    assert cli.main(["export", "tiny", "--to", "mlflow"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "pip install 'softadlib[mlflow]'" in line
    assert package in line


def test_numbers_that_mlflow_takes_in_several_calls(home):
    """More epochs than one call may have: 7 × 300 > 1000."""
    place = ResultFolder("tiny", "gaussian", "erm", "f")
    facts = place.read_provenance()
    rows = store.read("tiny", "gaussian", 0.0)
    one = rows[(rows["method"] == "erm") & (rows["trial"] == 0) & (rows["epoch"] == 4)]
    long = pd.concat([one.assign(epoch=e, loss_test=e / 8) for e in range(300)])
    place.finish(
        long, dataclasses.replace(facts, protocol={**facts.protocol, "label_noise": [0.0]})
    )
    mlflow_export.export("tiny")
    client, (run,) = runs(home, kind="training", method="erm")
    history = client.get_metric_history(run.info.run_id, "loss_test")
    assert {m.step: m.value for m in history} == {e: e / 8 for e in range(300)}
    assert len(history) == 300
