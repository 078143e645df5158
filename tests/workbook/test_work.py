"""What a command is asked to do, and the READMEs' examples, run as they are printed."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from helpers.protocols import train
from helpers.workspace import REPOSITORY, TINY, make_home, tree

from softadlib._validation import UserError
from softadlib.models import MODELS
from softadlib.training.profiles import load, parse_yaml, read_yaml, write_profile
from softadlib.workbook import work


def test_all_studies_or_those_that_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    make_home(tmp_path, gaussian={}, spiral={"grids": {"softad": [0.1]}})
    before = tree(tmp_path)
    names = [study.name for study in work.prepare("tiny").studies]
    assert names == [
        "gaussian × erm",
        "gaussian × sam",
        "gaussian × softad",
        "spiral × erm",
        "spiral × softad",
    ]
    part = work.prepare("tiny", ["spiral", "spiral"], ["softad"], {"trials": 7}, shard=(2, 3))
    (study,) = part.studies
    assert [run.trial for run in study.plan.runs] == [1, 4]
    with pytest.raises(UserError, match="'sam' unknown; choose from erm, softad"):
        work.prepare("tiny", None, ["sam"])
    assert tree(tmp_path) == before


def test_stored_results_are_noted(home):
    train(load("tiny", "gaussian", {"trials": 1}), "softad")
    assert work.notes(work.prepare("tiny")) == ["gaussian: 2 of 8 runs are trained already"]
    with pytest.raises(UserError, match=r"epochs 3, stored 4.*--as NAME"):
        work.prepare("tiny", changes={"epochs": 3})
    shown = work.prepare("tiny", methods=["softad"], changes={"epochs": 3}, stored=True)
    (note,) = work.notes(shown)
    assert note == "gaussian × softad: results of another protocol are stored (epochs 3, stored 4)"
    grids = {"grids": {"softad": [0.1, 0.8], "sam": [0.9]}}
    (note,) = work.notes(work.prepare("tiny", methods=["softad"], changes=grids | {"trials": 1}))
    assert note.startswith("gaussian: values of theta at or above ln 2 = 0.6931: 1 of 2 of softad;")


# The READMEs


def blocks(name, kind):
    """Return the code blocks of one kind in a README."""
    text = (REPOSITORY / name / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"```{kind}\n(.*?)```", text, re.S)


def run(code, home, **environment):
    """Run Python code in a workbook and return what it prints."""
    env = {**os.environ, "SOFTAD_HOME": str(home), "PYTHONPATH": str(REPOSITORY), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=home, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_results_in_pandas_as_the_readme_prints_it():
    pandas, _ = blocks("outputs", "python")
    printed = run(pandas, REPOSITORY)
    methods = [line.split()[0] for line in printed.splitlines()[2:]]
    assert methods == ["erm", "flooding", "iflood", "sam", "softad"]


@pytest.mark.filterwarnings("ignore")  # of mlflow and SQLAlchemy
def test_results_go_to_mlflow_as_the_readme_prints_it(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    make_home(tmp_path)
    write_profile(tmp_path / "params/smoke/gaussian.yaml", {"extends": "tiny/gaussian"})
    rows = train(load("smoke", "gaussian"), "softad")
    _, recipe = blocks("outputs", "python")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run(recipe, tmp_path, MLFLOW_TRACKING_URI=uri)
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("smoke").experiment_id
    runs = client.search_runs([experiment])
    assert len(runs) == 4
    for logged in runs:
        trial, knob = int(logged.data.params["trial"]), float(logged.data.params["knob"])
        mine = rows[(rows["trial"] == trial) & (rows["knob"] == knob)]
        history = client.get_metric_history(logged.info.run_id, "loss_test")
        assert {m.step: m.value for m in history} == dict(zip(mine["epoch"], mine["loss_test"]))


def test_profiles_as_the_readme_prints_them(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    make_home(tmp_path)
    whole, extending, images = blocks("params", "yaml")
    assert parse_yaml(whole) == read_yaml(REPOSITORY / "params/paper/gaussian.yaml")
    for name in ("paper/gaussian", "paper/fashionmnist"):
        path = tmp_path / f"params/{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text((REPOSITORY / f"params/{name}.yaml").read_text())
    (tmp_path / "params/mine").mkdir()
    (tmp_path / "params/mine/gaussian.yaml").write_text(extending)
    protocol = load("mine", "gaussian")
    assert protocol.methods == ("erm", "sam", "softad")
    assert (protocol.epochs, protocol.settings_of("softad")["sigma"]) == (100, 2)

    from PIL import Image

    pets = tmp_path / "pets"
    for part, name in (("train", "cat"), ("train", "dog"), ("test", "cat"), ("test", "dog")):
        (pets / part / name).mkdir(parents=True)
        for i in range(60):
            pixels = np.full((8, 8, 3), i, dtype=np.uint8)
            Image.fromarray(pixels).save(pets / part / name / f"{i}.png")
    (tmp_path / "params/mine/pets.yaml").write_text(images.replace("/data/pets", "pets"))
    (study,) = work.prepare("mine", ["pets"], ["softad"], {"batch_size": 20}).studies
    assert len(study.plan.runs) == 2


def test_from_csv_to_a_page_in_four_commands(tmp_path):
    """The commands but the last two, which execute notebooks, as the README prints them."""
    make_home(tmp_path)
    four = next(block for block in blocks("params", "sh") if "--from-csv" in block).splitlines()
    assert len(four) == 4
    model = "mlp2x256" if "mlp2x256" in MODELS else "linear"
    values = {**TINY, "model": model, "n_train": 0, "n_val": 0, "n_test": 0}
    write_profile(tmp_path / "params/tables/vehicle.yaml", values)
    rows = "".join(f"{i % 7},{'red' if i % 2 else 'blue'}\n" for i in range(40))
    (tmp_path / "flowers.csv").write_text("size,kind\n" + rows)
    softad = f'softad() {{ "{sys.executable}" -m softadlib "$@"; }}\n'
    script = softad + "set -e\n" + "\n".join([*four[:2], four[2].replace("run", "train") + " -j 1"])
    env = {**os.environ, "SOFTAD_HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        ["bash", "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "outputs/flowers/flowers/softad.parquet").is_file()
