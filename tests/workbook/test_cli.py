"""The command by its own words: bad input is one line and status 2, and nothing is written."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pandas as pd
import pytest
import torch
from helpers.workspace import (
    REPOSITORY,
    SECONDS,
    TINY,
    heed_ctrl_c,
    make_home,
    tree,
    write_notebook,
)

from softadlib.workbook import cli
from softadlib.workbook.data import tables
from softadlib.workbook.studies import results
from softadlib.workbook.studies.params import load
from softadlib.workbook.studies.read import finished

SOFTAD = [sys.executable, "-m", "softadlib"]
ERM = ["tiny", "--method", "erm", "-j", "1"]


def refused(capsys, *argv):
    """Return the one line that `softad ARGV` says before it gives up."""
    assert cli.main([str(a) for a in argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("softad: ")
    return line


STUDY = [
    (["nosuch"], ["'nosuch'", "choose from tiny"]),
    (["tiny", "--dataset", "gaussian,moons"], ["'moons'", "choose from gaussian"]),
    (["tiny", "--method", "flooding"], ["'flooding'", "choose from erm, sam, softad"]),
    (["tiny", "--method", ","], ["--method", "leave it out for all"]),
    (
        ["tiny", "-p", "epoch=3"],
        ["'epoch'", "choose from trials, label_noise, grids", "mean 'epochs'"],
    ),
    (["tiny", "-p", "learning_rate=1"], ["'learning_rate'", "mean 'lr'"]),
    (["tiny", "-p", "epochs=many"], ["epochs", "valid integer", "'many'"]),
    (["tiny", "-p", "epochs.softad=2"], ["epochs.softad", "epochs is 4"]),
    (["tiny", "-p", "grids={sam: ["], ["grids", "'{sam: ['", "YAML"]),
    (["tiny", "-p", "lr"], ["-p lr=VALUE"]),
    (["tiny", "-p", "lr", "0.01"], ["-p lr=VALUE"]),
    (["tiny", "-p", "theta=0.1"], ["grids.softad", "-p grids.softad=0.1,0.2"]),
    (["tiny", "-p", "sigma=2"], ["such as -p settings.softad.sigma=VALUE"]),
    (["tiny", "-p", "dataset=spiral"], ["--dataset"]),
    (["tiny", "--dryrun"], ["--dryrun", "--help"]),
    (["tiny", "--jobs", "0"], ["--jobs", "at least 1", "got 0"]),
    (["tiny", "--as", "my name"], ["letters, digits", "'my name'"]),
    (["tiny", "--as", "book"], ["outputs/book", "choose another name"]),
    (["tiny", "--as", "../x"], ["'../x'", "plain name"]),
]
if not torch.cuda.is_available():
    STUDY += [
        (["tiny", "-p", "device=cuda"], ["'cuda'", "choose cpu"]),
        (["tiny", "-p", "precision=tf32", "-p", "dtype=float32"], ["tf32", "CUDA GPU"]),
    ]
OTHERS = [
    ([], ["Missing command", "softad --help lists"]),
    (["fly"], ["'fly'", "softad --help lists"]),
    (["shw"], ["'shw'", "mean 'show'"]),
    (["run", "tiny", "--datset", "x"], ["--datset", "--dataset", "softad run --help lists"]),
    (["train", "tiny", "--shard", "3/2"], ["--shard", "3/16", "'3/2'"]),
    (["train", "tiny", "--shard", "1/2", "--fresh"], ["leave one of the two out"]),
    (["train", "tiny", "--scheduler", "nosuch.json"], ["'nosuch.json'", "tcp://HOST:PORT"]),
    (["draw", "--dataset", "gaussian"], ["softad draw PROFILE --dataset"]),
    (["draw", "tiny"], ["'tiny'", "softad train tiny"]),
    (["draw", "tinny"], ["profile 'tinny' unknown", "did you mean 'tiny'"]),
    (["show", "--dataset", "gaussian"], ["softad show PROFILE"]),
    (["show", "-p", "lr=1"], ["softad show PROFILE"]),
    (["report", "tiny"], ["'tiny'", "softad run tiny"]),
    (["report", "tiny", "--format", "pdf"], ["'pdf'", "'html', 'md', 'csv', 'latex'"]),
    (["data", "prepare", "fashionmist"], ["'fashionmnist'", "--from-csv"]),
    (["data", "prepare", "magic", "--target", "x"], ["--target", "--from-csv FILE"]),
    (["data", "prepare", "pets", "--from-csv", "nosuch.csv"], ["nosuch.csv is no file"]),
    (["data", "prepare", "digits"], ["digits needs no preparation"]),
    (["data", "prepare", "spiral", "--from-csv", "a.csv"], ["'spiral'", "choose another"]),
    (["data", "prepare", "vehicle", "--from-csv", "a.csv"], ["data/tables/vehicle.csv"]),
]
ASKED = (["run"], ["train"], ["train", "--dry-run"])
"""What refuses the same of a study: a dry run, too."""
BAD = [([*command, *argv], words) for argv, words in STUDY for command in ASKED] + OTHERS


@pytest.mark.parametrize(("argv", "words"), BAD, ids=lambda v: " ".join(v)[:60])
def test_bad_input_is_one_line_and_nothing_is_written(capsys, home, argv, words):
    before = tree(home)
    line = refused(capsys, *argv)
    assert [word for word in words if word not in line] == []
    assert tree(home) == before


def test_fresh_results_of_one_method_do_not_stand_beside_another_protocol(capsys, home):
    assert cli.main(["train", "tiny", "-j", "1"]) == 0
    capsys.readouterr()
    before = tree(home / "outputs")
    line = refused(capsys, "train", *ERM, "-p", "epochs=2", "--fresh")
    assert "epochs 2, stored 4" in line
    assert "--fresh, without --method" in line
    assert tree(home / "outputs") == before
    assert cli.main(["train", "tiny", "-j", "1", "-p", "epochs=2", "--fresh"]) == 0
    assert set(results.read("tiny", final=True)["epoch"]) == {2}


def test_a_damaged_result_is_named_with_what_to_do(capsys, home):
    assert cli.main(["train", *ERM]) == 0
    capsys.readouterr()
    path = home / "outputs/tiny/gaussian/erm.parquet"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for command in ("train", "show"):
        line = refused(capsys, command, "tiny")
        assert f"{path} is broken" in line
        assert "delete it" in line
        assert "softad train tiny --dataset gaussian --method erm" in line
    assert cli.main(["train", *ERM, "--fresh"]) == 0
    assert len(results.read("tiny", final=True)) == 2


def test_outside_a_workbook(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path / "elsewhere"))
    assert "set it to the repository" in refused(capsys, "train", "tiny")


def test_data_that_are_missing_are_not_called_trained(home, capsys):
    values = json.dumps({**TINY, "dataset": "fashionmnist"})
    (home / "params/tiny/fashionmnist.yaml").write_text(values)
    assert cli.main(["train", *ERM]) == 0
    assert cli.main(["show", "tiny", "--method", "erm"]) == 0
    out, err = capsys.readouterr()
    assert "left out: fashionmnist" in err, "of the training"
    (missing,) = [line.split() for line in out.splitlines() if line.startswith("fashionmnist")]
    assert "0%" in missing
    shown = out.splitlines()[-1]
    assert cli.main(["run", "tiny", "--method", "erm", "--dry-run"]) == 0
    planned = capsys.readouterr().out.splitlines()[-2]
    assert planned == f"{shown}, 2 of them of data that are missing: fashionmnist"
    assert shown == "2 trainings are left"
    line = refused(capsys, "train", "tiny", "--dataset", "fashionmnist")
    assert "get it: softad data prepare fashionmnist" in line


def test_a_changed_parameter_reaches_the_runs_and_mixes_with_nothing(home, capsys):
    assert cli.main(["train", *ERM]) == 0
    first = results.read("tiny")
    capsys.readouterr()
    before = tree(home)
    for command in ASKED:
        line = refused(capsys, *command, *ERM, "-p", "lr=0.5")
        assert "lr 0.5, stored 0.1" in line
        assert "--as NAME" in line
    assert tree(home) == before
    assert cli.main(["train", *ERM, "-p", "lr=0.5", "--as", "faster"]) == 0
    faster = results.read("faster")
    assert list(faster["epoch"]) == list(first["epoch"])
    assert (faster["loss_train"] != first["loss_train"])[faster["epoch"] > 0].all()
    pd.testing.assert_frame_equal(results.read("tiny"), first)


def test_runs_that_diverged_are_said(home, capsys):
    erm = ["train", "tiny", "--method", "erm", "-j", "1"]
    assert cli.main(erm) == 0
    assert "note:" not in capsys.readouterr().err
    assert cli.main([*erm, "-p", "lr=1e9", "-p", "label_noise=0.2", "--as", "large"]) == 0
    line = "note: gaussian × erm: 2 of 2 runs diverged; a smaller lr may help"
    assert line in capsys.readouterr().err
    assert results.provenances("large")["diverged"].tolist() == [2]


def test_shards_are_put_together(home, capsys):
    for shard in ("1/2", "2/2"):
        assert cli.main(["train", *ERM, "--shard", shard]) == 0
        assert f"shard {shard} is trained" in capsys.readouterr().err
    assert cli.main(["train", *ERM]) == 0
    together = results.read("tiny")
    assert cli.main(["train", *ERM, "--fresh"]) == 0
    pd.testing.assert_frame_equal(results.read("tiny"), together)


def test_the_array_job_of_the_readme_trains_all_shards(home):
    text = (REPOSITORY / "params" / "README.md").read_text()
    (script,) = re.findall(r"```sh\n(#!/bin/sh\n.*?)```", text, re.S)
    first, last = re.search(r"--array=(\d+)-(\d+)", script).groups()
    assert first == "1"
    assert f"$SLURM_ARRAY_TASK_ID/{last}" in script
    own = script.replace("paper --dataset spiral", "tiny --method erm").replace(
        f"ID/{last}", "ID/2"
    )
    own = own.replace("softad ", f"{sys.executable} -m softadlib ")
    for task in ("1", "2"):
        environment = {**os.environ, "SLURM_ARRAY_TASK_ID": task}
        done = subprocess.run(["sh", "-c", own], env=environment, capture_output=True, text=True)
        assert f"shard {task}/2 is trained" in done.stderr
    assert cli.main(["train", *ERM]) == 0
    together = results.read("tiny")
    assert cli.main(["train", *ERM, "--fresh"]) == 0
    pd.testing.assert_frame_equal(results.read("tiny"), together)


def test_a_profile_of_changed_parameters_has_all_methods(tmp_path, monkeypatch, capsys):
    home = make_home(tmp_path, gaussian={}, spiral={})
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setenv("SOFTAD_HOME", tmp_path.name)  # relative to the folder of the caller
    changes = ["-p", "lr=0.05", "-p", "settings.softad.sigma=2", "-p", "grids.flooding=0.1"]
    for dataset in ("spiral", "gaussian"):
        slow = ["train", *ERM, "--dataset", dataset, *changes, "--as", "slow"]
        assert cli.main(slow) == 0
    assert os.environ["SOFTAD_HOME"] == str(tmp_path)
    path = home / "params/slow/gaussian.yaml"
    assert path.read_text().splitlines() == [
        'extends: "tiny/gaussian"',
        "lr: 0.05",
        "settings.softad.sigma: 2",
        "grids.flooding: 0.1",
    ]
    tiny = load("tiny", "gaussian")
    grids = {**tiny.grids, "flooding": [0.1]}
    wanted = {"profile": "slow", "lr": 0.05, "settings": {"softad": {"sigma": 2}}, "grids": grids}
    assert load("slow", "gaussian") == tiny.replace(**wanted)
    trained = results.provenances("slow")
    assert list(zip(trained["dataset"], trained["method"])) == [
        ("gaussian", "erm"),
        ("spiral", "erm"),
    ]
    assert not (home / "outputs/tiny").exists()
    before = tree(home)
    assert cli.main(slow) == 0, "the same again is no contradiction"
    assert tree(home) == before
    assert (
        cli.main(["train", "slow", "-j", "1", "--dataset", "gaussian", "--method", "softad"]) == 0
    )
    before = tree(home)
    capsys.readouterr()
    line = refused(capsys, "train", *ERM, "-p", "lr=0.2", "--as", "slow", "--dataset", "gaussian")
    assert f"{path} has other parameters (grids, lr, settings)" in line
    assert "choose another name for --as" in line
    assert "softad train slow" in line
    assert tree(home) == before


def test_a_dry_run_of_one_dataset_lists_no_page_of_several(home, capsys):
    """As `run` draws none."""
    write_notebook(home / "notebooks/all.ipynb", "print(profile)")
    one = ["run", "tiny", "--dry-run", "-p", "epochs=2", "--as", "short"]
    assert cli.main(one) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "notebooks to draw: all"
    assert cli.main([*one, "--dataset", "gaussian"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "notebooks to draw: none"


@pytest.mark.parametrize("command", ["run", "train"])
def test_a_dry_run_says_what_is_left_and_writes_nothing(home, capsys, command):
    write_notebook(home / "notebooks/page.ipynb", "print(profile)")
    before = tree(home)
    assert cli.main([command, "tiny", "--dry-run", "-p", "epochs=2", "--as", "short"]) == 0
    lines = capsys.readouterr().out.splitlines()
    softad = "gaussian softad 0 of 2 0 of 2 0 of 4 2 0% –"
    assert lines[3].split() == softad.split()
    assert "10 trainings are left" in lines, "8 runs, and of softad's two selected the curves"
    assert ("notebooks to draw: page" in lines) == (command == "run")
    assert tree(home) == before


def test_show_and_a_dry_run_count_the_same(tmp_path, monkeypatch, capsys):
    """The trainings of data that are missing, too."""
    home = make_home(tmp_path, gaussian={}, letter={})
    monkeypatch.setenv("SOFTAD_HOME", str(home))
    monkeypatch.setenv("SOFTAD_DATA", str(home / "data"))
    said = []
    for command in (["show", "tiny"], ["train", "tiny", "--dry-run"], ["run", "tiny", "--dry-run"]):
        assert cli.main(command) == 0
        lines = capsys.readouterr().out.splitlines()
        (left,) = [line.partition(" trainings are left")[0] for line in lines if "left" in line]
        said.append(left)
    assert said == ["20", "20", "20"]


def test_own_data_are_listed_and_prepared(home, capsys):
    assert cli.main(["data", "list"]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert lines["digits"][1:] == ["embedded", "1,797", "of", "8", "×", "8"]
    assert lines["magic"][1:] == ["missing"]
    source = home / "flowers.csv"
    source.write_text("kind,size\n" + "red,1\nblue,2\n" * 10)
    argv = ["data", "prepare", "flowers", "--from-csv", str(source), "--target", "kind"]
    assert cli.main(argv) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{home}/data/flowers.parquet",
        "20 rows, 1 input, 2 classes",
        "classes, column kind: blue (10), red (10)",
        "numbers: size",
        "note: column 'size' has one value per class; leave it out if it says the class",
        "note: 18 rows are copies of an earlier row; copies may be in training and test",
    ]
    assert "flowers.parquet is there already; add --replace" in refused(capsys, *argv)
    assert cli.main([*argv, "--replace"]) == 0
    assert tables.read_table("flowers").classes == ("blue", "red")
    assert cli.main(["data", "list"]) == 0
    assert "flowers        prepared    20 rows" in capsys.readouterr().out


# Stopped on the way


TRAIN = ["train", "tiny", "--method", "softad", "-j", "1"]
LONGER = {**SECONDS, "trials": 2, "checkpoint_every": 20}
"""Eight runs in four tasks."""


def start(home, *argv):
    """Start the command in a process of its own."""
    env = {**os.environ, "SOFTAD_HOME": str(home)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*SOFTAD, *argv], env=env, **pipes)


def wait_for_parts(home, pattern, method="softad"):
    """Wait until a training of a method has stored a file."""
    while not list(home.glob(f"outputs/tiny/gaussian/parts/{method}/{pattern}")):
        time.sleep(0.01)


@contextlib.contextmanager
def signalled_when_stored(home, number, method="softad"):
    """Send this process a signal once a task of the training in the block is stored.

    It may come inside of `torch.no_grad`, which then does not put back what it found.
    """

    def wait_and_send():
        wait_for_parts(home, "*.parquet", method)
        os.kill(os.getpid(), number)

    threading.Thread(target=wait_and_send, daemon=True).start()
    yield
    torch.set_grad_enabled(True)
    torch.set_num_threads(1)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_command_says_so_and_the_next_one_resumes(
    tmp_path, monkeypatch, capsys, number, status
):
    home = make_home(tmp_path, gaussian=LONGER | {"curves": "none"})
    monkeypatch.setenv("SOFTAD_HOME", str(home))
    heed_ctrl_c()
    with signalled_when_stored(home, number):
        assert cli.main([*TRAIN, "--fresh"]) == status
    again = "softad: stopped; the command without --fresh resumes"
    assert capsys.readouterr().err.splitlines()[-1] == again
    assert cli.main(TRAIN) == 0
    (line,) = results.provenances("tiny").to_dict("records")
    assert line["runs"] == 8
    (provenance,) = finished("tiny").values()
    trained = [session.runs_trained for session in provenance.sessions]
    assert len(trained) == 2
    assert sum(trained) == 8, "none twice"


def test_a_stopped_command_with_fresh_and_changes_goes_on_without_fresh(tmp_path, monkeypatch):
    """Results of the methods that it had not come to are gone, too: they have another protocol."""
    home = make_home(tmp_path, gaussian=LONGER | {"curves": "none"})
    monkeypatch.setenv("SOFTAD_HOME", str(home))
    assert cli.main(["train", "tiny", "-j", "1", "-p", "epochs=2"]) == 0
    heed_ctrl_c()
    again = ["train", "tiny", "-j", "1", "-p", "epochs=100"]
    with signalled_when_stored(home, signal.SIGINT, "erm"):
        assert cli.main([*again, "--fresh"]) == 130
    assert cli.main(again) == 0
    assert set(results.read("tiny", final=True)["epoch"]) == {100}


def test_a_command_goes_on_after_a_kill_and_after_its_time(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(make_home(tmp_path / "whole", gaussian=LONGER)))
    assert cli.main(TRAIN) == 0
    whole = results.read("tiny")
    home = make_home(tmp_path / "parts", gaussian=LONGER)
    killed = start(home, *TRAIN)
    wait_for_parts(home, "*")
    killed.kill()
    killed.communicate()
    monkeypatch.setenv("SOFTAD_HOME", str(home))
    heed_ctrl_c()
    with signalled_when_stored(home, signal.SIGTERM):  # as `timeout` sends it
        assert cli.main(TRAIN) == 143
    assert not (home / "outputs/tiny/gaussian/softad.parquet").exists()
    assert cli.main(TRAIN) == 0
    pd.testing.assert_frame_equal(results.read("tiny"), whole, check_exact=True)


# In a process of its own


def test_a_reader_that_closes_ends_the_command_without_a_word(home):
    command = start(home, "data", "list")
    command.stdout.close()
    assert command.stderr.read() == ""
    assert command.wait() == 141
    command.stderr.close()


def test_a_terminal_that_knows_no_dash_shows_a_question_mark(home):
    env = {**os.environ, "SOFTAD_HOME": str(home), "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([*SOFTAD, "show", "tiny"], env=env, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines()[1].endswith(b"?")


def test_a_shell_completes_commands_profiles_and_datasets(home):
    def completions(line):
        asked = {"_SOFTAD_COMPLETE": "complete_bash", "COMP_WORDS": line}
        asked["COMP_CWORD"] = str(len(line.split()) - (line[-1] != " "))
        env = {**os.environ, "SOFTAD_HOME": str(home), **asked}
        return subprocess.run(SOFTAD, env=env, capture_output=True, text=True).stdout.split()

    assert completions("softad dr") == ["draw"]
    assert completions("softad run ti") == ["tiny"]
    assert completions("softad run tiny --dataset g") == ["gaussian"]


def test_without_the_packages_of_the_workbook_the_command_is_one_line():
    code = "import sys; sys.modules['typer'] = None; from softadlib.__main__ import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    line = "softad: typer is not installed; run in a clone: pip install '.[workbook]'\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_help_does_not_wait_for_torch():
    code = (
        "import sys\nfrom softadlib.workbook import cli\n"
        "try: cli.main(['train', '--help'])\nexcept SystemExit as end: assert end.code == 0\n"
        "print([m for m in ('torch', 'numpy', 'pandas') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert "--shard i/N" in done.stdout
