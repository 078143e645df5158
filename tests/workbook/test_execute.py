"""Pages executed by real kernels: whole or not at all, with failures named and results missing or stored."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from helpers.protocols import train
from helpers.workspace import REPOSITORY, heed_ctrl_c, make_home, tree, write_notebook

from softadlib import results
from softadlib._validation import UserError
from softadlib.training.profiles import load
from softadlib.workbook import cli, notebooks

DRAWING = "from softadlib import results; print(len(results.read(profile, final=True)))"


def add(home, name, *cells, **options):
    """Write a notebook, with a cell for its parameters and `cells`."""
    write_notebook(home / "notebooks" / f"{name}.ipynb", *cells, **options)


def page(home, name, **parameters):
    """Return a page whose target is beside the notebooks of profile tiny."""
    source = home / "notebooks" / f"{name}.ipynb"
    return notebooks.Page(name, source, home / "outputs/tiny/figures" / source.name, parameters)


def texts(path):
    """Return what the cells of an executed notebook printed."""
    cells = nbformat.read(path, as_version=4).cells
    return [o["text"].strip() for c in cells for o in c.get("outputs", ()) if "text" in o]


def visible(folder):
    """Return the names in a folder, without locks and unfinished files."""
    return sorted(path.name for path in folder.iterdir() if path.name[0] != ".")


def test_run_trains_every_study_then_draws_and_redoes_no_training(home, capsys):
    shutil.copy(REPOSITORY / "notebooks/train.ipynb", home / "notebooks")
    add(home, "count", DRAWING)
    argv = ["tiny", "--method", "erm,softad", "-j", "2", "-p", "trials=1"]
    assert cli.main(["run", *argv]) == 0
    assert "done: 3 notebooks in" in capsys.readouterr().err.splitlines()[-1]
    folder = home / "outputs/tiny"
    assert visible(folder) == ["figures", "gaussian"]
    files = ["erm.ipynb", "erm.parquet", "softad.ipynb", "softad.parquet"]
    assert visible(folder / "gaussian") == files
    for method in ("erm", "softad"):
        assert f"{method} on gaussian: " in texts(folder / f"gaussian/{method}.ipynb")[0]
    assert texts(folder / "figures/count.ipynb") == ["3"]

    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}
    assert cli.main(["run", *argv]) == 0
    assert "done: 0 notebooks in" in capsys.readouterr().err.splitlines()[-1], "nothing is missing"
    assert {path: path.stat().st_mtime_ns for path in before} == before

    rows = results.read("tiny")
    assert cli.main(["train", *argv, "--fresh"]) == 0
    assert results.read("tiny").equals(rows), "the same table without a notebook"


def test_drawing_alone_trains_nothing_also_with_a_relative_home(home, monkeypatch):
    monkeypatch.chdir(home.parent)
    monkeypatch.setenv("SOFTAD_HOME", home.name)
    assert cli.main(["train", "tiny", "--method", "erm", "-j", "1"]) == 0
    add(home, "count", DRAWING)
    before = {path: path.stat().st_mtime_ns for path in (home / "outputs").rglob("*.parquet")}
    assert cli.main(["draw", "tiny", "-j", "1"]) == 0
    assert {p: p.stat().st_mtime_ns for p in (home / "outputs").rglob("*.parquet")} == before
    assert texts(home / "outputs/tiny/figures/count.ipynb") == ["2"]


def test_a_failure_is_named_in_one_line_and_the_others_are_drawn(home, capsys):
    assert cli.main(["train", "tiny", "--method", "erm", "-j", "1"]) == 0
    add(home, "broken", "x = 1", "raise ValueError('no such luck')")
    add(
        home,
        "refused",
        "from softadlib import results; results.read(profile, final=True)",
        parameters="profile = 'x'",
    )
    add(
        home,
        "unread",
        "from softadlib._validation import MissingData; raise MissingData('no rows of spiral')",
    )
    add(home, "dying", "x = 1", "import os; os.kill(os.getpid(), 9)")
    add(home, "count", DRAWING)
    figures = home / "outputs/tiny/figures"
    capsys.readouterr()
    assert cli.main(["draw", "tiny", "-j", "2"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    said = [line.strip() for line in err.replace("\r", "\n").splitlines() if "softad: " in line]
    said = {line.split("softad: ")[1].split(":")[0]: line for line in said}
    as_it_stopped = f"the page as it stopped: {figures}/broken.error.ipynb"
    assert said["broken"].endswith(f"broken: In [4]: ValueError: no such luck; {as_it_stopped}")
    assert "dying In [4]: DeadKernelError" in said["dying In [4]"]
    lacking = "not drawn, results that they need are not there: unread; why: "
    assert f"{lacking}{figures}/*.not-drawn.txt" in err
    assert (figures / "unread.not-drawn.txt").read_text() == "no rows of spiral\n"
    assert "2 of 5 notebooks failed; the same command tries them again" in err
    assert visible(figures) == [
        "broken.error.ipynb",
        "count.ipynb",
        "dying.error.ipynb",
        "refused.ipynb",
        "unread.not-drawn.txt",
    ]

    for name in ("dying", "refused", "unread"):
        (home / f"notebooks/{name}.ipynb").unlink()
    add(home, "broken", "print('mended')")
    assert cli.main(["draw", "tiny", "-j", "2"]) == 0
    assert texts(figures / "broken.ipynb") == ["mended"]
    assert not (figures / "broken.error.ipynb").exists()


def test_a_cell_that_takes_too_long_is_stopped(home, capsys):
    add(home, "stuck", "import time; time.sleep(600)", parameters="size = 1")
    assert cli.main(["draw", "-j", "1", "--timeout", "5"]) == 1
    assert "stuck In [2]: CellTimeoutError" in capsys.readouterr().err


def test_a_training_that_fails_is_a_failure(home, capsys):
    add(home, "train", "1 / 0", parameters="profile = dataset = method = changes = jobs = None")
    assert cli.main(["run", "tiny", "--method", "erm", "-j", "1"]) == 1
    assert "gaussian × erm: In [3]: ZeroDivisionError" in capsys.readouterr().err


def test_conclusions_stay_with_the_results_that_they_are_of(home):
    add(
        home,
        "page",
        "print(profile)",
        "print('so it is')",
        parameters="profile: str = 'paper'\nsize: int = 1",
    )
    path = home / "notebooks/page.ipynb"
    document = nbformat.read(path, as_version=4)
    document.cells[-1].metadata.tags = [notebooks.STORED]
    nbformat.write(document, path)
    for parameters, printed in (
        ({"profile": "tiny"}, ["tiny"]),
        ({"profile": "paper"}, ["paper", "so it is"]),
        ({"profile": "paper", "size": 1}, ["paper", "so it is"]),
        ({"profile": "paper", "size": 2}, ["paper"]),
    ):
        (outcome,) = notebooks.execute([page(home, "page", **parameters)], jobs=1)
        assert outcome.error == ""
        assert texts(outcome.page.target) == printed


def test_pages_of_a_profile_have_its_datasets_and_label_noise(tmp_path, monkeypatch):
    noisy = {"label_noise": [0.2, 0.1]}
    home = make_home(tmp_path, gaussian={}, spiral=noisy | {"grids": {"softad": [0.1]}})
    monkeypatch.setenv("SOFTAD_HOME", str(home))
    add(home, "each", parameters="profile = 'paper'\ndataset = 'gaussian'\nlabel_noise = 0.0")
    add(home, "all", parameters="profile = 'paper'\nlabel_noise = 0.0")
    add(home, "theory", parameters="size = 1")
    add(home, "own", parameters="size = 1", profiles=["tiny"])
    add(home, "others", parameters="profile_read = 'images'", profiles=["images"])
    pages = {
        p.name: p.parameters for p in notebooks.pages_of_profile("tiny", ["gaussian", "spiral"])
    }
    assert pages == {
        "all": {"profile": "tiny"},
        "each-gaussian": {"profile": "tiny", "dataset": "gaussian"},
        "each-spiral": {"profile": "tiny", "dataset": "spiral", "label_noise": 0.1},
        "own": {},
    }
    pages = {p.name: p.parameters for p in notebooks.pages_of_profile("tiny", ["spiral"])}
    assert pages["all"] == {"profile": "tiny", "label_noise": 0.1}, "no labels are clean"
    assert [p.name for p in notebooks.pages_of_no_profile()] == ["theory"]
    add(home, "odd", profiles="paper")
    with pytest.raises(
        UserError, match=r'odd.ipynb: metadata softad must be profiles, "all" or a list'
    ):
        notebooks.pages_of_no_profile()


def test_pages_of_no_profile_are_drawn_for_all(home):
    add(home, "theory", "print(size)", parameters="size = 1")
    add(home, "count", DRAWING)
    assert cli.main(["draw", "-j", "1"]) == 0
    assert visible(home / "outputs/figures") == ["theory.ipynb"]
    assert texts(home / "outputs/figures/theory.ipynb") == ["1"]


def test_run_draws_what_is_missing_and_draw_draws_all(tmp_path, monkeypatch, capsys):
    """Nothing is left to train: what counts is whether a page is there and newer than what it reads."""
    home = make_home(tmp_path, gaussian={}, sinusoid={})
    monkeypatch.setenv("SOFTAD_HOME", str(home))
    assert cli.main(["train", "tiny", "--method", "erm", "-j", "1"]) == 0
    add(home, "count", DRAWING)
    add(home, "each", "print(dataset)", parameters="profile = 'tiny'\ndataset = 'gaussian'")
    add(
        home, "lacking", "from softadlib.results import MissingData; raise MissingData('no spiral')"
    )
    erm = ["tiny", "--method", "erm"]

    def planned(*argv):
        capsys.readouterr()
        assert cli.main([*argv, "--dry-run"]) == 0
        return (
            capsys.readouterr().out.splitlines()[-1].removeprefix("notebooks to draw: ").split(", ")
        )

    every = ["count", "each-gaussian", "each-sinusoid", "lacking"]
    assert planned("run", *erm) == every
    assert planned("run", *erm, "--dataset", "sinusoid") == ["each-sinusoid"]
    assert cli.main(["run", *erm, "--dataset", "sinusoid", "-j", "1"]) == 0
    assert planned("run", *erm) == ["count", "each-gaussian", "lacking"]
    assert cli.main(["run", *erm, "-j", "2"]) == 0
    assert "not there: lacking; why" in capsys.readouterr().err
    assert planned("run", *erm) == ["none"], "what cannot be drawn is not tried again"
    assert planned("draw", "tiny") == every
    assert planned("draw", "tiny", "--dataset", "gaussian") == ["count", "each-gaussian", "lacking"]
    os.utime(home / "outputs/tiny/gaussian/erm.parquet")
    assert planned("run", *erm) == ["count", "each-gaussian", "lacking"], "its results are newer"
    os.utime(home / "notebooks/each.ipynb")
    assert planned("run", *erm) == every


def test_who_stops_iterating_goes_on(home):
    """The pages that have begun end, no other one is begun, and the process lives."""
    for number in range(4):
        add(home, f"page{number}", parameters="size = 1")
    pages = [page(home, f"page{number}") for number in range(4)]
    for outcome in notebooks.execute(pages, jobs=1):
        assert outcome.error == ""
        break
    drawn = visible(home / "outputs/tiny/figures")
    assert outcome.page.target.name in drawn
    assert len(drawn) < 4


def kernels():
    """Return the process ids of ipykernel on this machine and of their parents."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"ipykernel_launcher" in (folder / "cmdline").read_bytes():
                found[int(folder.name)] = int(
                    (folder / "stat").read_text().rsplit(")")[1].split()[1]
                )
        except OSError:
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_command_leaves_no_page_and_no_kernel(home, number, status):
    add(
        home,
        "slow",
        "open('begun', 'w').close()",
        *["pass"] * 600,  # the page is written after each: at any moment
        parameters="size = 1",
    )
    command = subprocess.Popen(
        [sys.executable, "-m", "softadlib", "draw", "-j", "1"],
        env={**os.environ, "SOFTAD_HOME": str(home)},
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (home / "notebooks/begun").exists():
        assert command.poll() is None
        time.sleep(0.05)
    ours = [pid for pid, parent in kernels().items() if parent == command.pid]
    assert len(ours) == 1
    os.kill(command.pid, number)
    out, err = command.communicate(timeout=60)
    assert (command.returncode, out) == (status, "")
    assert err.splitlines()[-1].endswith("softad: stopped; the same command resumes")
    assert "Traceback" not in err
    assert list((home / "outputs").rglob("*.ipynb")) == []
    deadline = time.monotonic() + 30
    while set(ours) & kernels().keys() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not set(ours) & kernels().keys()


def papermill(home, *options):
    """Execute the training page by papermill, in the folder of a workbook."""
    source = str(REPOSITORY / "notebooks/train.ipynb")
    command = [sys.executable, "-m", "papermill", source, str(home / "out.ipynb"), "-k", "python3"]
    env = {**os.environ, "SOFTAD_HOME": str(home), "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run([*command, *options], env=env, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["-p", "method", "softda"],
            "UserError: method for gaussian in profile tiny 'softda' unknown",
        ),
        (
            ["-p", "epoch", "3"],
            "UserError: parameter 'epoch' unknown; choose from profile, dataset",
        ),
        (["-p", "changes", "{epoch: 3}"], "UserError: parameter 'epoch' unknown"),
        (["-p", "method", "sam", "-p", "theta", "0.1"], "sam has radius in place of it"),
    ],
)
def test_papermill_on_the_training_page_ends_with_one_line(home, options, words):
    done = papermill(home, "-p", "profile", "tiny", *options)
    assert done.returncode == 1
    assert words in done.stderr.strip().splitlines()[-1]
    assert not (home / "outputs").exists()


def test_papermill_trains_with_changed_parameters_under_another_name(home):
    assert cli.main(["train", "tiny", "--method", "softad", "-j", "1"]) == 0
    before = tree(home)
    given = ["-p", "lr", "0.01", "-p", "epochs", "2", "-p", "theta", "0.2"]
    done = papermill(home, "-p", "profile", "tiny", *given, "-p", "changes", "{trials: 1}")
    assert done.returncode == 0, done.stderr
    assert "unknown parameter" not in done.stderr
    assert {name: tree(home)[name] for name in before} == before
    rows = results.read("tiny-epochs-2-softad-0.2-lr-0.01-trials-1", final=True)
    assert rows[["epoch", "trial", "knob"]].to_numpy().tolist() == [[2, 0, 0.2]]
    changes = {"lr": 0.01, "epochs": 2, "trials": 1, "grids.softad": 0.2}
    again = train(load("tiny", "gaussian", changes).replace(profile="other"), "softad")
    assert rows["loss_test"].tolist() == results.final(again)["loss_test"].tolist()
    assert cli.main(["draw", "tiny-epochs-2-softad-0.2-lr-0.01-trials-1"]) == 0
