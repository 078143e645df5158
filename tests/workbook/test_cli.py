"""The command by its own words: bad input is one line and status 2, and nothing is written."""

import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
import torch
from helpers.workspace import SECONDS, TINY, heed_ctrl_c, make_home, tree, write_notebook

from softadlib import results
from softadlib.data import tables
from softadlib.results.read import finished
from softadlib.training.profiles import load
from softadlib.workbook import cli

SOFTAD = [sys.executable, "-m", "softadlib"]


def refused(capsys, *argv):
    """Return the one line that `softad ARGV` says before it gives up."""
    assert cli.main([str(a) for a in argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("softad: ")
    return line


STUDY = [
    (["nosuch"], "profile 'nosuch' unknown; choose from tiny"),
    (["tiny", "--dataset", "moons"], "dataset 'moons' unknown; choose from gaussian"),
    (["tiny", "--dataset", "gaussian,moons"], "dataset 'moons' unknown"),
    (["tiny", "--method", "flooding"], "'flooding' unknown; choose from erm, sam, softad"),
    (["tiny", "--method", ","], "--dataset and --method need a name; leave them out for all"),
    (["tiny", "-p", "epoch=3"], "parameter 'epoch' unknown; choose from folder, table, target"),
    (["tiny", "-p", "epochs=many"], "epochs: input should be a valid integer, got 'many'"),
    (["tiny", "-p", "epochs.softad=2"], "epochs.softad cannot be set: epochs is 4, no mapping"),
    (["tiny", "-p", "grids={sam: ["], "parameter grids: '{sam: [' is not YAML"),
    (["tiny", "-p", "lr=2024-13-45"], "parameter lr: '2024-13-45' is not YAML"),
    (["tiny", "-p", "lr=" + "[" * 3000], "parameter lr: '[[[[[[[[[["),
    (["tiny", "-p", "grids.softda=null"], "'softda' unknown; choose from"),
    (["tiny", "-p", "lr"], "-p lr has no value; give -p lr=VALUE"),
    (["tiny", "-p", "lr", "0.1"], "unrecognized arguments: 0.1"),
    (["tiny", "-p", "theta=0.1"], "such as -p grids.softad=0.1,0.2"),
    (
        ["tiny", "-p", "sigma=2"],
        "settings.softad.sigma, such as -p ",
    ),
    (["tiny", "--dryrun"], "unrecognized arguments: --dryrun; softad --help lists"),
    (["tiny", "--jobs", "0"], "--jobs must be a whole number of at least 1, got 0"),
    (["tiny", "--as", "book"], "has other contents; choose another name"),
    (["tiny", "--as", "../x"], "use a plain name"),
    (["tiny", "--as", "my lr"], "profile: string should match pattern '^[A-Za-z0-9]"),
    (["tiny", "--scheduler", "nosuch.json"], "must be tcp://HOST:PORT or a file that exists"),
]
NO_GPU = (
    []
    if torch.cuda.is_available()
    else [
        (
            ["tiny", "-p", "device=cuda"],
            "device 'cuda' is not available here; choose ",
        ),
        (["tiny", "-p", "precision=tf32", "-p", "dtype=float32"], "tf32 needs a CUDA GPU"),
    ]
)
DRY = ("--jobs", "--as", "device=cuda", "precision=tf32", "epoch=3", "theta=0.1")
"""What a dry run refuses as well: all that can be known before anything is trained."""
OTHERS = [
    ([], "arguments are required: COMMAND"),
    (["fly"], "invalid choice: 'fly' (choose from"),
    (["train", "tiny", "--shard", "3/2"], "--shard must be i/N with 1 ≤ i ≤ N, such as 3/16"),
    (["train", "tiny", "--shard", "1/2", "--fresh"], "leave one of the two out"),
    (["run", "figures"], "profile 'figures' unknown; choose from tiny"),
    (["draw", "--dataset", "gaussian"], "give softad draw PROFILE --dataset D"),
    (["draw", "nosuch"], "profile 'nosuch' unknown; choose from tiny"),
    (["draw", "tiny"], "nothing is finished in profile 'tiny'; first: softad train tiny"),
    (["draw", "tiny", "--jobs", "0"], "--jobs must be a whole number of at least 1, got 0"),
    (["run", "tiny", "--timeout", "0"], "--timeout must be a whole number of at least 1"),
    (["show", "nosuch"], "profile 'nosuch' unknown; choose from tiny"),
    (["report", "nosuch"], "profile 'nosuch' unknown; choose from tiny"),
    (["report", "tiny"], "nothing is drawn of profile 'tiny' yet; first: softad run tiny"),
    (["report", "tiny", "--format", "pdf"], "invalid choice: 'pdf' (choose from"),
    (["data", "prepare", "fashionmist"], "did you mean 'fashionmnist'?; for a table of your own add --from"),
    (["data", "prepare", "magic", "--target", "x"], "--target names a column of --from-csv FILE"),
    (["data", "prepare", "pets", "--from-csv", "nosuch.csv"], "nosuch.csv is no file"),
]  # fmt: skip
STUDY += NO_GPU
BAD = [([command, *argv], words) for argv, words in STUDY for command in ("run", "train")] + OTHERS
BAD += [
    (["train", *argv, "--dry-run"], words)
    for argv, words in STUDY
    if any(word in argv for word in DRY)
]


@pytest.mark.parametrize(
    ("argv", "words"), BAD, ids=lambda v: " ".join(v)[:60] if isinstance(v, list) else ""
)
def test_bad_input_is_one_line_and_nothing_is_written(capsys, home, argv, words):
    before = tree(home)
    assert words in refused(capsys, *argv)
    assert tree(home) == before


def test_a_damaged_result_is_named_with_what_to_do(capsys, home):
    assert cli.main(["train", "tiny", "--method", "erm", "-j", "1"]) == 0
    capsys.readouterr()
    path = home / "outputs/tiny/gaussian/erm.parquet"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    again = (
        "delete it, then train what is missing: softad train tiny --dataset gaussian --method erm"
    )
    for command in ("train", "show"):
        line = refused(capsys, command, "tiny")
        assert f"{path} is broken" in line
        assert again in line
    assert cli.main(["train", "tiny", "--method", "erm", "-j", "1", "--fresh"]) == 0
    assert len(results.read("tiny", final=True)) == 2


def test_outside_a_workbook(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path / "elsewhere"))
    assert "set it to the repository" in refused(capsys, "train", "tiny")


def test_data_that_are_missing_are_not_called_trained(home, capsys):
    values = json.dumps({**TINY, "dataset": "fashionmnist"})
    (home / "params/tiny/fashionmnist.yaml").write_text(values)
    assert cli.main(["train", "tiny", "--method", "erm", "-j", "1"]) == 0
    assert cli.main(["show", "tiny", "--method", "erm"]) == 0
    out, err = capsys.readouterr()
    assert "left out: fashionmnist" in err, "of the training"
    (missing,) = [line.split() for line in out.splitlines() if line.startswith("fashionmnist")]
    assert "0%" in missing
    assert out.endswith("trainings are left\n")
    line = refused(capsys, "train", "tiny", "--dataset", "fashionmnist")
    assert "get it: softad data prepare fashionmnist" in line


def test_a_changed_parameter_reaches_the_runs_and_mixes_with_nothing(home, capsys):
    erm = ["train", "tiny", "--method", "erm", "-j", "1"]
    assert cli.main(erm) == 0
    first = results.read("tiny")
    capsys.readouterr()
    before = tree(home)
    for command in ("run", "train"):
        line = refused(capsys, command, *erm[1:], "-p", "lr=0.5")
        assert "has results of another protocol (lr" in line
        assert "--as NAME" in line
    assert tree(home) == before
    assert cli.main([*erm, "-p", "lr=0.5", "--as", "faster"]) == 0
    faster = results.read("faster")
    assert list(faster["epoch"]) == list(first["epoch"])
    assert (faster["loss_train"] != first["loss_train"])[faster["epoch"] > 0].all()
    pd.testing.assert_frame_equal(results.read("tiny"), first)


def test_shards_are_put_together(home, capsys):
    for shard in ("1/2", "2/2"):
        assert cli.main(["train", "tiny", "--shard", shard, "-j", "1"]) == 0
        assert f"shard {shard} is trained" in capsys.readouterr().err
    assert cli.main(["train", "tiny", "-j", "1"]) == 0
    together = results.read("tiny")
    assert cli.main(["train", "tiny", "-j", "1", "--fresh"]) == 0
    pd.testing.assert_frame_equal(results.read("tiny"), together)


def test_a_profile_of_changed_parameters_holds_the_changes_alone(home, capsys):
    erm = ["train", "tiny", "--method", "erm", "-j", "1"]
    slow = [*erm, "-p", "lr=0.05", "-p", "settings.softad.sigma=2", "--as", "slow"]
    assert cli.main(slow) == 0
    path = home / "params/slow/gaussian.yaml"
    assert path.read_text().splitlines() == [
        'extends: "tiny/gaussian"',
        "lr: 0.05",
        "settings.softad.sigma: 2",
        "grids.sam: null",
        "grids.softad: null",
    ]
    changes = {"lr": 0.05, "settings.softad.sigma": 2, "grids": {}}
    assert load("slow", "gaussian") == load("tiny", "gaussian", changes).replace(profile="slow")
    assert results.provenances("slow")["method"].tolist() == ["erm"]
    assert not (home / "outputs/tiny").exists()
    written = path.stat().st_mtime_ns
    assert cli.main(slow) == 0, "the same again is no contradiction"
    assert path.stat().st_mtime_ns == written
    capsys.readouterr()
    before = tree(home)
    line = refused(capsys, *erm, "-p", "lr=0.2", "--as", "slow")
    assert f"{path} has other parameters; choose another name for --as" in line
    assert tree(home) == before


def test_a_profile_of_changed_parameters_trains_what_was_asked_for_alone(tmp_path, monkeypatch):
    make_home(tmp_path, gaussian={}, spiral={})
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setenv("SOFTAD_HOME", tmp_path.name)  # relative to the folder of the caller
    for dataset in ("spiral", "gaussian"):
        argv = ["train", "tiny", "--dataset", dataset, "--method", "erm", "-j", "1"]
        assert cli.main([*argv, "-p", "lr=0.05", "--as", "slow"]) == 0
        known = results.provenances("slow")
        assert set(known["dataset"]) == {"spiral", dataset}
    assert os.environ["SOFTAD_HOME"] == str(tmp_path)
    changes = ["-p", "grids.flooding=[0.1]", "--as", "more"]
    assert cli.main([*argv, *changes]) == 0
    assert load("more", "gaussian").methods == ("erm",), "no grid of a method that was left out"


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


# Data


def test_own_data_are_listed_and_prepared(home, capsys):
    assert cli.main(["data", "list"]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert lines["digits"][1:] == ["embedded", "1,797", "of", "8", "×", "8"]
    assert lines["magic"][1:] == ["missing"]
    source = home / "flowers.csv"
    source.write_text("kind,size\n" + "red,1\nblue,2\n" * 10)
    argv = ["data", "prepare", "flowers", "--from-csv", str(source), "--target", "kind"]
    assert cli.main(argv) == 0
    size = "20 rows, 1 inputs, 2 classes"
    assert capsys.readouterr().out.splitlines() == [
        f"{home}/data/flowers.parquet",
        size,
        "classes, column kind: blue (10), red (10)",
        "numbers: size",
        "note: 18 rows are copies of an earlier row; copies may be in training and test",
    ]
    assert "flowers.parquet is there already; add --replace" in refused(capsys, *argv)
    assert cli.main([*argv, "--replace"]) == 0
    capsys.readouterr()
    assert tables.read_table("flowers").classes == ("blue", "red")
    assert cli.main(["data", "list"]) == 0
    assert f"flowers        prepared    {size}" in capsys.readouterr().out
    assert "digits needs no preparation" in refused(capsys, "data", "prepare", "digits")
    assert "'colour' unknown" in refused(capsys, *argv[:-1], "colour", "--replace")


# A process of its own


def start(home, *argv, **options):
    """Start the command as a terminal does: in a process group of its own."""
    env = {**os.environ, "SOFTAD_HOME": str(home)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen(
        [*SOFTAD, *argv], env=env, start_new_session=True, preexec_fn=heed_ctrl_c, **pipes
    )


def test_a_stopped_command_says_so_and_the_next_one_resumes(tmp_path, monkeypatch):
    values = {
        "epochs": 40,
        "trials": 12,
        "curves": "none",
        "grids": {"softad": [0.1, 0.2, 0.3, 0.4]},
    }
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        home = make_home(tmp_path / str(status), gaussian=values)
        fresh = ["--fresh"] if number == signal.SIGINT else []
        command = start(home, "train", "tiny", "--method", "softad", "-j", "2", *fresh)
        parts = home / "outputs/tiny/gaussian/parts/softad"
        while not list(parts.glob("*.parquet")) and command.poll() is None:
            time.sleep(0.01)
        os.killpg(command.pid, number)
        out, err = command.communicate(timeout=60)
        assert (command.returncode, out) == (status, "")
        assert "Traceback" not in err
        again = "the command without --fresh" if fresh else "the same command"
        assert err.splitlines()[-1] == f"softad: stopped; {again} resumes"
        kept = {path: path.stat().st_mtime_ns for path in parts.glob("*.parquet")}
        assert kept
        monkeypatch.setenv("SOFTAD_HOME", str(home))
        assert cli.main(["train", "tiny", "--method", "softad", "-j", "1"]) == 0
        (line,) = results.provenances("tiny").to_dict("records")
        assert (line["runs"], line["runs_without_session"]) == (48, 0)
        (provenance,) = finished("tiny").values()
        assert sum(session.runs_trained for session in provenance.sessions) == 48, "none twice"


def test_a_command_ends_by_itself_before_its_time_and_goes_on_also_after_a_kill(
    tmp_path, monkeypatch, capsys
):
    longer = {**SECONDS, "epochs": 1000, "curve_every": 500, "checkpoint_every": 20}
    train = ["train", "tiny", "--method", "softad", "-j", "1"]
    monkeypatch.setenv("SOFTAD_HOME", str(make_home(tmp_path / "whole", gaussian=longer)))
    assert cli.main(train) == 0
    whole = results.read("tiny")
    home = make_home(tmp_path / "parts", gaussian=longer)
    killed = start(home, *train, "--until", "1h")
    while not list(home.glob("outputs/tiny/gaussian/parts/softad/*.pt")):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    monkeypatch.setenv("SOFTAD_HOME", str(home))
    stopped = 0
    while not (home / "outputs/tiny/gaussian/softad.parquet").exists():
        capsys.readouterr()
        assert cli.main([*train, "--until", "2s"]) == 0
        line = capsys.readouterr().err.splitlines()[-1]
        if "2s are nearly over" in line:
            assert "trainings are left; the same command goes on" in line
            stopped += 1
    assert stopped > 0
    pd.testing.assert_frame_equal(results.read("tiny"), whole, check_exact=True)


@pytest.mark.parametrize("time_limit", ["9", "m", "0m", "-1h", "soon"])
def test_a_time_that_is_none_is_refused(capsys, home, time_limit):
    assert f"got {time_limit!r}" in refused(capsys, "train", "tiny", f"--until={time_limit}")


def test_a_reader_that_closes_ends_the_command_without_a_word(home):
    command = start(home, "data", "list")
    command.stdout.close()
    assert command.stderr.read() == ""
    assert command.wait() == 141
    command.stderr.close()


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["run", "--help"]])
def test_help_does_not_wait_for_torch(argv):
    code = (
        "import sys\nfrom softadlib.workbook import cli\n"
        f"try: cli.main({argv})\nexcept SystemExit as end: assert end.code == 0\n"
        "print([m for m in ('torch', 'numpy', 'pandas') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert done.stdout


def test_a_terminal_without_greek_letters(home):
    """As Windows has them: ≥ and – are in the notes and the table."""
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "SOFTAD_HOME": str(home)}
    command = [*SOFTAD, "show", "tiny", "-p", "grids.softad=0.8"]
    done = subprocess.run(command, capture_output=True, env=env)
    assert done.returncode == 0
    assert b"gaussian" in done.stdout


def completions(home, line):
    """Return what a shell is given for TAB at the end of `line`, as bash's argcomplete asks for it."""
    answer = home / "answer"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line.encode()))}
    asked |= {"_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    subprocess.run(SOFTAD, env={**os.environ, **asked, "SOFTAD_HOME": str(home)}, check=True)
    return [word.strip() for word in answer.read_text().splitlines()]


def test_tab_completes_profiles_datasets_methods_and_parameters(home):
    (home / "params/quick").mkdir()
    assert completions(home, "softad run q") == ["quick"]
    assert completions(home, "softad train tiny --dataset ") == ["gaussian"]
    assert completions(home, "softad train tiny --method soft") == ["softad", "softad-width"]
    assert set(completions(home, "softad train tiny -p lr")) == {"lr=", "lr_schedule="}
    assert completions(home, "softad train tiny -p lr=0.1 --method tilt") == ["tilted"]
    assert completions(home, "softad report tiny --format ") == ["html", "md", "csv", "latex"]
