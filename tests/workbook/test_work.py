"""What a command is asked to do, and the READMEs' examples, run as they are printed."""

import contextlib
import re
import shlex
import shutil
import subprocess
import sys
import types

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.protocols import train
from helpers.workspace import REPOSITORY, TINY, make_home, tree

from softadlib._validation import UserError
from softadlib.models import MODELS
from softadlib.workbook import cli
from softadlib.workbook.studies import results, work
from softadlib.workbook.studies.params import load, parse_yaml, read_yaml, write_profile
from softadlib.workbook.studies.run_study import run_study


def test_all_studies_or_those_that_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    make_home(tmp_path, gaussian={}, spiral={"grids": {"softad": [0.1]}})
    before = tree(tmp_path)
    names = [study.name for study in work.plan_work("tiny").studies]
    assert names == [
        "gaussian × erm",
        "gaussian × sam",
        "gaussian × softad",
        "spiral × erm",
        "spiral × softad",
    ]
    part = work.plan_work("tiny", ["spiral", "spiral"], ["softad"], {"trials": 7}, shard=(2, 3))
    (study,) = part.studies
    assert [run.trial for run in study.runs] == [1, 4]
    with pytest.raises(UserError, match=r"'sam' has no grid .* choose from erm, softad"):
        work.plan_work("tiny", None, ["sam"])  # of gaussian alone
    assert tree(tmp_path) == before


def test_the_network_is_built_once_before_the_first_step(home, monkeypatch):
    seeds = []

    def own(shape, classes):
        seeds.append(torch.initial_seed())
        return torch.nn.Linear(*shape, classes)

    monkeypatch.setitem(MODELS, "own", own)
    changes = {"model": "own", "trials": 1, "grids.softad": [0.1, 0.2, 0.3]}
    planned = work.check_work(work.plan_work("tiny", methods=["softad"], changes=changes))
    (study,) = planned.studies
    assert run_study(study, jobs=1)["knob"].nunique() == 3
    assert seeds == list(study.protocol.seeds)


def test_stored_results_are_noted(home):
    train(load("tiny", "gaussian", {"trials": 1}), "softad")
    assert work.notes(work.plan_work("tiny")) == ["gaussian: 2 of 8 runs are trained already"]
    shown = work.plan_work("tiny", methods=["softad"], changes={"epochs": 3})
    (note,) = work.notes(shown)
    assert note == "gaussian × softad: results of another protocol are stored (epochs 3, stored 4)"


# The READMEs


def blocks(name, kind):
    """Return the code blocks of one kind in a README."""
    text = (REPOSITORY / name / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"```{kind}\n(.*?)```", text, re.S)


def test_results_in_pandas_as_the_readme_prints_it(capsys, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    _, pandas, _ = blocks("outputs", "python")
    exec(pandas, {})
    methods = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert methods == ["erm", "flooding", "iflood", "sam", "softad"]


def test_results_go_to_a_tracker_as_the_readme_prints_it(monkeypatch):
    """A stand-in for mlflow, which takes minutes to install, counts what it is given."""
    logged = []
    tracker = types.SimpleNamespace(
        set_experiment=lambda name: None,
        start_run=lambda run_name: contextlib.nullcontext(),
        log_params=lambda params: logged.append((params, {})),
        log_metrics=lambda measures, step: logged[-1][1].update({step: measures["loss_test"]}),
    )
    monkeypatch.setitem(sys.modules, "mlflow", tracker)
    _, _, recipe = blocks("outputs", "python")
    exec(recipe, {})
    rows = results.read("smoke")
    assert len(logged) == len(results.final(rows))
    for params, losses in logged:
        same = rows[[*params]].eq(params) | (rows[[*params]].isna() & pd.isna(params["knob"]))
        mine = rows[same.all(axis=1)]
        assert losses == dict(zip(mine["epoch"], mine["loss_test"]))


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
    (study,) = work.plan_work("mine", ["pets"], ["softad"]).studies
    assert len(study.runs) == 2


def test_a_few_dozen_images_train_as_the_readme_prints_it(home):
    """With the learning rate and the batches of the file that it extends, the loss was 1e5."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for i in range(36):
        pixels = rng.normal(120, 30, (16, 16, 3))
        pixels[..., i % 3] += 40
        file = home / "pets" / ("cat", "dog", "cow")[i % 3] / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file)
    for name in ("paper", "pets"):
        (home / "params" / name).mkdir()
    shutil.copy(REPOSITORY / "params/paper/fashionmnist.yaml", home / "params/paper")
    *_, example = blocks("params", "yaml")
    (home / "params/pets/pets.yaml").write_text(example.replace("/data/pets", "pets"))
    assert cli.main(["train", "pets", "--method", "erm", "-j", "1"]) == 0
    end = results.final(results.read("pets")).iloc[0]
    assert end["loss_train"] < np.log(3) / 2
    assert end["loss_test"] < np.log(3)
    assert end["acc_train"] > 0.9


def test_from_csv_to_a_page_in_four_commands(home, monkeypatch):
    """As the README prints them; of the last two, which execute notebooks, the training alone."""
    monkeypatch.chdir(home)
    four = next(block for block in blocks("params", "sh") if "--from-csv" in block).splitlines()
    values = {**TINY, "model": "mlp2x256", "n_train": 0, "n_val": 0, "n_test": 0}
    write_profile(home / "params/tables/vehicle.yaml", values)
    rows = "".join(f"{i % 7},{'red' if i % 2 else 'blue'}\n" for i in range(40))
    (home / "flowers.csv").write_text("size,kind\n" + rows)
    prepare, write, run, _ = four
    assert cli.main(shlex.split(prepare)[1:]) == 0
    subprocess.run(["bash", "-c", write], check=True)
    assert shlex.split(run)[:3] == ["softad", "run", "flowers"]
    assert cli.main(["train", *shlex.split(run)[2:], "--method", "erm", "-j", "1"]) == 0
    assert (home / "outputs/flowers/flowers/erm.parquet").is_file()
