"""A profile in parts on machines that know nothing of each other: the tables of one call, row for row."""

import json
import os
import re
import shutil
import subprocess

import pandas as pd
import pytest
import yaml
from helpers.workspace import REPOSITORY, TINY, make_home, read_provenance, tree
from hypothesis import given
from hypothesis import strategies as st

from softadlib._validation import UserError
from softadlib.results import reader as store
from softadlib.training import study
from softadlib.training.executors import shards, slurm, train_task
from softadlib.training.protocol import Protocol
from softadlib.workbook import cli

GRIDS = {"softad": [0.05, 0.3], "sam": [0.1], "adaflood": [0.1, 0.5]}
DATASETS = {
    "gaussian": {"trials": 3, "grids": GRIDS, "settings": {"adaflood": {"aux_folds": 2}}},
    "spiral": {"label_noise": [0.0, 0.1], "epochs": 3, "grids": {"softad": [0.05, 0.3]}},
}
UNITS = 3 * 4 + 2 * 2 * 2


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    return make_home(tmp_path, **DATASETS)


def softad(monkeypatch, home, *argv):
    monkeypatch.setenv("SOFTAD_HOME", str(home))
    return cli.main([*argv])


def written(home):
    """What a home's outputs hold, locks aside."""
    return {p.relative_to(home / "outputs").as_posix() for p in (home / "outputs").rglob("*")
            if p.is_file() and not p.name.startswith(".")}  # fmt: skip


def without_locks(home):
    """Files and their times, locks aside: who holds one is written into it."""
    return {name: time for name, time in tree(home).items() if not name.endswith(".lock")}


def test_three_machines_and_a_copy_make_the_tables_of_one(tmp_path, monkeypatch, capsys):
    names = ("plain", "one", "two", "three", "whole")
    homes = {name: make_home(tmp_path / name, **DATASETS) for name in names}
    assert softad(monkeypatch, homes["plain"], "train", "tiny", "-j", "1") == 0
    keys = []
    for i, name in enumerate(names[1:4], 1):
        assert (
            softad(monkeypatch, homes[name], "train", "tiny", "--shard", f"{i}/3", "-j", "1") == 0
        )
        assert f"shard {i}/3: " in capsys.readouterr().err
        kinds = {
            re.sub(r"[0-9a-f]{16}-.*\.", "*.", p).split("/", 3)[3] for p in written(homes[name])
        }
        assert kinds <= {
            "parts/*.parquet",
            "parts/*.json",
            "losses/*.parquet",
            "held-out/*.npz",
        }, "parts alone"
        rows = [pd.read_parquet(p) for p in homes[name].rglob("parts/*.parquet")]
        keys.append(
            set(pd.concat(rows).groupby(["dataset", "method", "label_noise", "trial"]).groups)
        )
        shutil.copytree(homes[name] / "outputs", homes["whole"] / "outputs", dirs_exist_ok=True)
    assert sum(map(len, keys)) == len(set.union(*keys)) == UNITS, "every unit once"
    assert max(map(len, keys)) < UNITS - 4, "and none of the three has nearly all"
    sessions = [p for p in (homes["whole"] / "outputs").rglob("parts/*.json")]
    assert store.read("tiny").empty

    monkeypatch.setattr(
        train_task, "train_runs", lambda *args, **kwargs: pytest.fail("trained again")
    )
    assert softad(monkeypatch, homes["whole"], "train", "tiny", "-j", "1") == 0
    assert not list((homes["whole"] / "outputs").rglob("parts"))
    for dataset, method in [("gaussian", m) for m in ("erm", *GRIDS)] + [("spiral", "softad")]:
        for file in ("metrics.parquet", "selected.parquet"):
            tables = [
                pd.read_parquet(homes[n] / "outputs/tiny" / dataset / method / file)
                for n in ("plain", "whole")
            ]
            pd.testing.assert_frame_equal(*tables, check_exact=True)
    found = [
        s
        for p in (homes["whole"] / "outputs").rglob("provenance.json")
        for s in read_provenance(p)["sessions"]
    ]
    assert len(found) == len(sessions), "a session of each shard and none of putting together"
    assert sum(s["runs_trained"] for s in found) == 3 * 6 + 2 * 2 * 3
    assert all(s["seconds"] >= 0 and s["device"].startswith("cpu") for s in found)
    before = without_locks(homes["whole"])
    assert softad(monkeypatch, homes["whole"], "train", "tiny", "--shard", "2/3", "-j", "1") == 0
    assert without_locks(homes["whole"]) == before, "a shard of what is finished does nothing"


def test_a_shard_leaves_the_results_of_another_protocol_alone(home):
    old = Protocol.from_dict({"profile": "tiny", "dataset": "gaussian", "device": "cpu", **TINY})
    study.run(old, "erm")
    before = without_locks(home)
    study.run(old.replace(lr=0.2), "erm", trials={(0.0, 1)})
    assert {n: t for n, t in without_locks(home).items() if n in before} == before
    rows = study.run(old.replace(lr=0.2), "erm")
    assert rows["trial"].unique().tolist() == [0, 1]
    folder = home / "outputs/tiny/gaussian"
    assert (folder / f"erm.{old.fingerprint('erm')}" / "metrics.parquet").exists()
    sessions = read_provenance(folder / "erm" / "provenance.json")["sessions"]
    assert [s["runs_trained"] for s in sessions] == [1, 1], "one by the shard, one by the whole"


@pytest.mark.parametrize("text", ["0/4", "5/4", "x", "1/0", "-1/4", "1/4/2", "1.5/4", "", "¹/4"])
def test_bad_shards_are_one_line(home, capsys, text):
    before = tree(home)
    assert cli.main(["train", "tiny", f"--shard={text}"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("softad: --shard must be i/N with i from 1 to N")
    assert repr(text) in line
    assert tree(home) == before


def test_fresh_is_not_for_a_shard(home, capsys):
    assert cli.main(["train", "tiny", "--shard", "1/2", "--fresh"]) == 2
    assert "--fresh forgets what other shards did" in capsys.readouterr().err


def test_more_shards_than_units(home, capsys):
    argv = ["train", "tiny", "--dataset", "gaussian", "--method", "erm", "-j", "1"]
    assert cli.main([*argv, "--shard", "4/5"]) == 0
    assert "shard 4/5: 0 trials are trained" in capsys.readouterr().err
    assert not written(home)


costs = st.lists(st.integers(1, 10**15), max_size=40)


@given(costs, st.integers(1, 12), st.randoms())
def test_a_split_holds_every_unit_once_and_is_even(costs, count, random):
    every = [shards.Unit("gaussian", "erm", 0.0, i, c) for i, c in enumerate(costs)]
    parts = shards.split(every, count)
    assert sorted(u for part in parts for u in part) == sorted(every)
    loads = [sum(u.cost for u in part) for part in parts]
    if every:
        # whoever has most took its last unit when it had least: at most the mean and one unit
        assert max(loads) <= sum(costs) / count + max(costs)
        assert max(loads) - min(loads) <= max(costs)
    shuffled = list(every)
    random.shuffle(shuffled)
    assert shards.split(shuffled, count) == parts


def test_the_cost_of_a_trial_by_hand():
    """2 coordinates → 2 classes: 8 operations forward; 3 times that for each sample trained on.

    Samples that are only measured count a quarter.
    """
    p = Protocol.from_dict({"profile": "t", "dataset": "gaussian", **TINY})
    measured = (20 + 20 + 40) * 8 // 4
    by = {u.method: u.cost for u in shards.units([(p, m) for m in ("erm", "sam", "softad")])}
    step = 3 * 8 * 20 * 4  # of one run, four epochs of 20 samples
    assert by["erm"] == step + (1 + 2) * measured
    assert by["sam"] == 2 * step + (1 + 2) * measured, "two gradients a step"
    assert by["softad"] == 3 * step + (2 + 3) * measured, "two values; the replay at epochs 0, 2, 4"


def test_the_split_needs_no_data(home):
    """Which units are whose is the same where an image set is missing."""
    values = {**TINY, "profile": "tiny", "dataset": "cifar10", "model": "resnet18"}
    (home / "params/tiny/cifar10.yaml").write_text(yaml.safe_dump({**values, "n_train": 0}))
    found, parts = shards.split_profile("tiny", None, None, {}, 4)
    assert set(found) == {"gaussian", "spiral", "cifar10"}
    assert all("cifar10" in {u.dataset for u in part} for part in parts), "the costliest first"
    assert sum(map(len, parts)) == UNITS + 3 * 2


def script(home, capsys, *argv):
    assert cli.main(["slurm", "tiny", *argv]) == 0
    text = capsys.readouterr().out
    path = home / "job.sh"
    path.write_text(text)
    subprocess.run(["bash", "-n", path], check=True)
    return text, path


def test_the_array_script_trains_its_shard_and_then_finishes(home, capsys, monkeypatch):
    (home / "params/tiny/spiral.yaml").unlink()
    shutil.copy(REPOSITORY / "notebooks/train.ipynb", home / "notebooks")
    argv = [
        "--method",
        "erm",
        "-p",
        "epochs",
        "2",
        "-p",
        "label_noise",
        "[0.1, '$(touch oops)'][:1]",
    ]
    assert cli.main(["slurm", "tiny", "--shards", "2", *argv]) == 2, "a bad value is refused here"
    capsys.readouterr()
    argv = ["--method", "erm", "-p", "label_noise", "[0.1] # '; touch $(echo oops) \"`", "-j", "1"]
    before = tree(home)
    text, path = script(home, capsys, "--shards", "2", *argv)
    assert "#SBATCH --array=1-2\n" in text
    assert "#SBATCH --cpus-per-task=1\n" in text
    assert "##SBATCH --time=HH:MM:SS" in text, "nothing is known of the speed yet"
    assert {k: v for k, v in tree(home).items() if k != "job.sh"} == before
    environment = {k: v for k, v in os.environ.items() if k != "SOFTAD_HOME"}
    for i in ("1", "2"):
        subprocess.run(
            ["bash", path], check=True, cwd=home, env={**environment, "SLURM_ARRAY_TASK_ID": i}
        )
        rows = pd.concat(pd.read_parquet(p) for p in home.rglob("parts/*.parquet"))
        assert rows["trial"].nunique() in ((1, 2) if i == "1" else (3,))
        assert rows["label_noise"].unique().tolist() == [0.1]
    subprocess.run(["bash", path, "finish"], check=True, cwd=home, env=environment)
    assert len(store.read("tiny")) == 3 * 3
    assert (home / "outputs/tiny/gaussian/erm/train.ipynb").exists()
    assert not list(home.rglob("oops*"))

    # where a result says how fast a network is, the script asks for a time
    said = home / "outputs/tiny/gaussian/erm/provenance.json"
    said.write_text(re.sub(r'"gflops": [\d.]+', '"gflops": 0.01', said.read_text()))
    text, _ = script(home, capsys, "--shards", "2", *argv)
    assert "#SBATCH --time=00:10:00\n" in text


def test_time_is_the_longest_shard_by_the_stored_speed_twice(home, monkeypatch):
    part = [shards.Unit("gaussian", "erm", 0.0, 0, 9 * 3600 * 10**9)]
    p = Protocol.from_dict({"profile": "t", "dataset": "gaussian", **TINY})
    monkeypatch.setattr(slurm, "speeds", lambda: {"linear": 1.5e9})
    lines = slurm._time({"gaussian": p}, [part, []], cpus=4)
    assert lines[-1] == "#SBATCH --time=03:00:00", "9e12 h·op/s / 1.5e9 / 4 processes, twice"


def test_a_stopped_session_has_no_speed_and_hides_no_other(home):
    """Median of 2 and 4 GFLOP/s by one process each: 3."""
    made = Protocol.from_dict({"profile": "tiny", "dataset": "gaussian", "device": "cpu", **TINY})
    study.run(made, "erm")
    path = home / "outputs/tiny/gaussian/erm/provenance.json"
    facts = read_provenance(path)
    (session,) = facts["sessions"]
    stopped = {name: value for name, value in session.items() if name != "gflops"}
    facts["sessions"] = [session | {"gflops": 2.0}, stopped, session | {"gflops": 8.0, "jobs": 2}]
    path.write_text(json.dumps(facts))
    assert slurm.speeds() == {"linear": 3e9}


@pytest.mark.parametrize("count", ["0", "-3", "10001"])
def test_bad_counts_are_one_line(home, capsys, count):
    assert cli.main(["slurm", "tiny", f"--shards={count}"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--shards must be a number of jobs from 1 to 10000" in err


def test_bad_input_is_refused_before_a_script_is_printed(home, capsys):
    with pytest.raises(UserError, match="method for gaussian"):
        shards.split_profile("tiny", None, ["ishida"], {}, 2)
    assert cli.main(["slurm", "tiny", "--shards", "2", "--dataset", "moons"]) == 2
    assert capsys.readouterr().out == ""
