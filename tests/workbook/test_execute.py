"""The whole way: papermill over datasets × methods, accidents included. Tiny, but nothing simulated."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import time

import nbformat
import pandas as pd
import pytest
from helpers.workspace import TINY, make_home, tree, write_notebook

from softadlib._validation import UserError
from softadlib.results import reader as store
from softadlib.training.profiles import load
from softadlib.workbook import cli
from softadlib.workbook.notebooks import plan as plans
from softadlib.workbook.notebooks.sources import PACKAGE, modules_used
from softadlib.workbook.prepare import Selection, prepare

SPIRAL_WITH_ERM = ["run", "tiny", "--dataset", "spiral", "--method", "erm", "-j", "1"]
READING = ("tab1_3_loss_gaps", "tab2_4_hyperparameters", "figs04-10_trajectories")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    return make_home(
        tmp_path, ("train", *READING), gaussian={}, spiral={"grids": {"softad": [0.1]}}
    )


@pytest.fixture(scope="module")
def spiral_with_erm(tmp_path_factory):
    """A home where one method of one dataset was run, and a notebook with a parameter drawn."""
    home = make_home(tmp_path_factory.mktemp("spiral"), ("train", *READING), gaussian={}, spiral={})
    write_notebook(
        home / "notebooks" / "drawing.ipynb",
        "print(size)",
        parameters="profile = 'tiny'\nsize = 1",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTAD_HOME", str(home))
        assert cli.main(SPIRAL_WITH_ERM) == 0
    return home


def softad(home, *argv, **options):
    """Start `softad ARGV` as a person would, in its own process group."""
    return subprocess.Popen(
        [sys.executable, "-m", "softadlib.workbook.cli", *argv],
        env={**os.environ, "SOFTAD_HOME": str(home)}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options,
    )  # fmt: skip


def without_locks(home):
    """Files and their times: who holds a lock is written into it."""
    return {name: time for name, time in tree(home).items() if not name.endswith("lock")}


def visible(folder):
    """Names in a folder, locks aside."""
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))


def test_run_executes_every_pair_then_draws_then_reports(home, capsys):
    assert cli.main(["run", "tiny", "-j", "2"]) == 0
    err = capsys.readouterr().err
    lines = [line for line in err.splitlines() if "under way" not in line]
    assert len(lines) == 9 + 1, "off a terminal one line per notebook, and what was made"
    assert all(" took " in line and " of 9 notebooks, " in line for line in lines[:9])
    assert "100% trained" in lines[8]
    assert re.fullmatch(
        r"softad: done: 9 notebooks in .*outputs/tiny; next: softad report tiny", lines[9]
    )
    folder = home / "outputs" / "tiny"
    pairs = {
        ("gaussian", "erm"),
        ("gaussian", "sam"),
        ("gaussian", "softad"),
        ("spiral", "erm"),
        ("spiral", "softad"),
    }
    for dataset, method in pairs:
        names = visible(folder / dataset / method)
        assert names == ["metrics.parquet", "provenance.json", "selected.parquet", "train.ipynb"]
    rows = store.read("tiny")
    assert set(zip(rows["dataset"], rows["method"])) == pairs
    drawn = visible(folder / "figures")
    assert drawn == ["figs04-10_trajectories-gaussian.ipynb", "figs04-10_trajectories-spiral.ipynb",
                     "tab1_3_loss_gaps.ipynb", "tab2_4_hyperparameters.ipynb"]  # fmt: skip
    executed = nbformat.read(folder / "gaussian" / "softad" / "train.ipynb", as_version=4)
    code = [c for c in executed.cells if c.cell_type == "code"]
    assert all(c.execution_count for c in code)
    hidden = {p.name for p in folder.rglob(".*") if not p.name.endswith("lock")}
    assert not hidden, "no temporary file stays beside the locks"

    # the second call redoes nothing
    before = without_locks(home)
    assert cli.main(["run", "tiny", "-j", "2"]) == 0
    assert "9 of 9 notebooks are already done" in capsys.readouterr().err
    assert without_locks(home) == before

    # the same table without a notebook
    other = store.read("tiny")
    assert cli.main(["train", "tiny", "--fresh", "-j", "1"]) == 0
    pd.testing.assert_frame_equal(store.read("tiny"), other)

    # the report is one page that needs nothing beside it
    assert cli.main(["report", "tiny"]) == 0
    page = (folder / "index.html").read_text()
    assert page.index("What was run") < page.index("Loss gaps") < page.index("How each was run")
    assert page.count("data:image/png;base64,") == 6 + 2, "six in the notebooks, two shown first"
    assert page.count("data:image/svg+xml;base64,") == 2, "one per dataset"
    assert "gaussian: 2 trials, up to 2 values per swept method, 4 epochs, 8 runs" in page
    assert "No description has been provided" not in page
    identifiers = re.findall(r'\sid="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))
    for raw in ("erm", "loss_test", "NaN"):
        assert f">{raw}</td>" not in page
        assert f">{raw}</th>" not in page
    assert "<script" not in page
    assert 'src="http' not in page
    assert 'href="http' not in page
    beside = {p.name: p.read_bytes() for p in (folder / "figures").glob("*.png")}
    assert sorted(beside) == [
        f"figs04-10_trajectories-{d}-{i}.png" for d in ("gaussian", "spiral") for i in (1, 2, 3)
    ]
    for picture in beside.values():
        assert base64.b64encode(picture).decode() in page.replace("\n", "")


def test_a_longer_call_says_what_is_there_and_does_the_rest(home, capsys):
    assert cli.main(["train", "tiny", "-p", "trials", "1", "-j", "1"]) == 0
    assert "trained already" not in capsys.readouterr().err
    before = store.read("tiny")
    assert cli.main(["train", "tiny", "-j", "1"]) == 0
    err = capsys.readouterr().err.splitlines()
    # one trial of two: erm 1, sam 1, softad 2 values
    assert "softad: note: gaussian: 4 of 8 runs are trained already" in err
    after = store.read("tiny")
    assert len(after) > len(before)
    kept = after.merge(before, how="inner")
    assert len(kept) == len(before), "not a number moved"
    assert cli.main(["train", "tiny", "-j", "1"]) == 0
    err = capsys.readouterr().err
    assert (err.count(" was trained already ("), "note" in err) == (5, False)
    assert "softad: done: 5 trainings" in err.splitlines()[-1]


def test_filters_train_less(spiral_with_erm):
    folder = spiral_with_erm / "outputs" / "tiny"
    assert visible(folder) == ["figures", "spiral"]
    assert visible(folder / "spiral") == ["erm"]


def test_drawing_alone_trains_nothing(home, capsys):
    """Of results that are stored in part: one method of two datasets, one trial of two."""
    assert cli.main(["run", "tiny", "--draw-only"]) == 2
    assert "nothing is finished in profile 'tiny'" in capsys.readouterr().err
    part = ["--dataset", "spiral", "--method", "erm", "-p", "trials", "1"]
    assert cli.main(["train", "tiny", *part, "-j", "1"]) == 0
    stored = home / "outputs/tiny/spiral/erm/metrics.parquet"
    before = stored.read_bytes()
    assert cli.main(["run", "tiny", "--draw-only", "-j", "1"]) == 0
    assert visible(home / "outputs" / "tiny") == ["figures", "spiral"]
    assert stored.read_bytes() == before
    drawn = [path.stem for path in (home / "outputs/tiny/figures").glob("*.ipynb")]
    assert "tab1_3_loss_gaps" in drawn


def test_stock_papermill_works_too(home):
    out = home / "out.ipynb"
    command = ["papermill", home / "notebooks/train.ipynb", out, "-f", home / "params/tiny/gaussian.yaml",
               "-p", "method", "softad", "-k", "python3"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], env={**os.environ, "SOFTAD_HOME": str(home)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "unknown parameter" not in done.stderr
    assert set(store.read("tiny")["method"]) == {"softad"}


def test_stock_papermill_takes_a_profile_that_extends_another(home):
    """The file gives epochs alone: the knobs are those of the file below it."""
    below = "extends: tiny/gaussian\nprofile: tiny\ndataset: spiral\nepochs: 2\n"
    (home / "params/tiny/spiral.yaml").write_text(below)
    command = ["papermill", home / "notebooks/train.ipynb", home / "out.ipynb", "-f",
               home / "params/tiny/spiral.yaml", "-p", "method", "softad", "-k", "python3"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], env={**os.environ, "SOFTAD_HOME": str(home)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "unknown parameter" not in done.stderr
    rows = store.read("tiny")
    assert set(rows["dataset"]) == {"spiral"}
    assert rows["epoch"].max() == 2
    assert set(rows["knob"]) == {0.05, 0.3}


def test_a_failure_names_notebook_and_cell_and_lets_the_others_finish(home, capsys):
    for name in READING[:2]:
        (home / "notebooks" / f"{name}.ipynb").unlink()
    write_notebook(home / "notebooks" / "broken.ipynb", "x = 1", "raise ValueError('no such luck')")
    write_notebook(home / "notebooks" / "stuck.ipynb", "x = 1", "import time; time.sleep(60)")
    write_notebook(
        home / "notebooks" / "dying.ipynb",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    )
    assert cli.main(["run", "tiny", "--dataset", "spiral", "-j", "2", "--timeout", "20"]) == 1
    err = capsys.readouterr().err
    figures = home / "outputs" / "tiny" / "figures"
    assert "broken failed in notebooks/broken.ipynb In [4]: ValueError: no such luck" in err
    assert "stuck failed in notebooks/stuck.ipynb" in err
    assert "Timeout" in err
    assert "dying failed in notebooks/dying.ipynb" in err
    assert "3 of 6 notebooks failed" in err
    assert "Traceback" not in err
    for name in ("broken", "stuck", "dying"):
        assert (figures / f"{name}.error.ipynb").exists()
        assert not (figures / f"{name}.ipynb").exists()
    assert (figures / "figs04-10_trajectories-spiral.ipynb").exists()
    assert set(store.read("tiny")["method"]) == {"erm", "softad"}

    # mended, it is done on the next call, and the error notebook is gone
    for name in ("stuck", "dying"):
        (home / "notebooks" / f"{name}.ipynb").unlink()
    write_notebook(home / "notebooks" / "broken.ipynb", "x = 1")
    assert cli.main(["run", "tiny", "--dataset", "spiral", "-j", "2"]) == 0
    assert (figures / "broken.ipynb").exists()
    assert not (figures / "broken.error.ipynb").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere kernels live a second longer")
def test_sigkill_in_the_middle_then_again(tmp_path, monkeypatch):
    """No unreadable file, nothing done twice but what was in flight, the same tables."""
    settings = {"grids": {"softad": [0.05, 0.1, 0.2, 0.3]}, "trials": 4, "epochs": 60,
                "curve_every": 20, "stack": 8}  # fmt: skip
    homes = [
        make_home(tmp_path / n, ("train", "tab1_3_loss_gaps"), gaussian=settings)
        for n in ("cut", "whole")
    ]
    monkeypatch.setenv("SOFTAD_HOME", str(homes[1]))
    assert cli.main(["train", "tiny", "-j", "1"]) == 0
    assert cli.main(["run", "tiny", "--draw-only", "-j", "1"]) == 0
    run = softad(homes[0], "run", "tiny", "-j", "2")
    parts = homes[0] / "outputs" / "tiny" / "gaussian" / "softad" / "parts"
    deadline = time.time() + 120
    while not list(parts.glob("*.parquet")) and time.time() < deadline:
        time.sleep(0.02)
    run.kill()  # the kernels end with it
    run.wait()
    kept = {p.name: p.read_bytes() for p in parts.glob("*.parquet")}
    assert kept, "the accident came while the sweep was under way"
    for path in (homes[0] / "outputs").rglob("*.parquet"):
        pd.read_parquet(path)
    for path in (homes[0] / "outputs").rglob("*.json"):
        json.loads(path.read_text())
    monkeypatch.setenv("SOFTAD_HOME", str(homes[0]))
    assert cli.main(["run", "tiny", "-j", "2"]) == 0
    folders = [h / "outputs" / "tiny" / "gaussian" for h in homes]
    for method in ("erm", "softad"):
        tables = [pd.read_parquet(f / method / "metrics.parquet") for f in folders]
        pd.testing.assert_frame_equal(*tables)
    facts = json.loads((folders[0] / "softad" / "provenance.json").read_text())
    assert facts["runs"] == 16
    assert facts["sessions"][0]["runs_trained"] <= 16 - 8, "a finished stack is not trained again"
    shown = [
        nbformat.read(h / "outputs/tiny/figures/tab1_3_loss_gaps.ipynb", as_version=4)
        for h in homes
    ]
    texts = [
        [o.get("data", o) for c in nb.cells if c.cell_type == "code" for o in c.outputs]
        for nb in shown
    ]
    assert texts[0] == texts[1]


def test_a_plan_knows_what_is_left(home):
    plan = plans.plan(prepare(Selection("tiny")))
    assert sorted(t.name for t in plan.trainings) == [
        "gaussian × erm", "gaussian × sam", "gaussian × softad", "spiral × erm", "spiral × softad",
    ]  # fmt: skip
    units = {t.name: t.units for t in plan.trainings}
    assert units["gaussian × softad"] == (4 + 2) * 4
    assert units["gaussian × sam"] == 2 * 4 * 2
    assert list(units.values()) == sorted(units.values(), reverse=True)
    assert [t.name for t in plan.drawings] == [
        "figs04-10_trajectories-gaussian", "figs04-10_trajectories-spiral", *READING[:2],
    ]  # fmt: skip
    assert not (home / "outputs").exists(), "planning writes nothing"


def test_a_drawing_is_redone_when_its_parameters_or_results_change(
    spiral_with_erm, tmp_path, monkeypatch
):
    home = shutil.copytree(spiral_with_erm, tmp_path / "copy")
    monkeypatch.setenv("SOFTAD_HOME", str(home))

    def planned(*methods):
        return plans.plan(prepare(Selection("tiny", ["spiral"], methods or None)))

    assert planned("erm").drawings == []
    folder = home / "params" / "tiny" / "figures"
    folder.mkdir()
    (folder / "drawing.yaml").write_text("size: 3")
    assert [t.name for t in planned("erm").drawings] == ["drawing"]
    redone = [t.name for t in planned().drawings]
    assert redone == ["drawing", "figs04-10_trajectories-spiral", *READING[:2]], (
        "softad is still to come"
    )
    assert cli.main(SPIRAL_WITH_ERM) == 0
    shown = nbformat.read(home / "outputs/tiny/figures/drawing.ipynb", as_version=4)
    assert shown.cells[-1].outputs[0].text == "3\n"


def test_notebooks_that_read_no_profile_are_drawn_once_for_all(home, capsys):
    write_notebook(home / "notebooks" / "theory.ipynb", "print(size)", parameters="size = 1")
    assert "theory" not in [t.name for t in plans.plan(prepare(Selection("tiny"))).drawings]
    assert cli.main(["run", "figures", "-j", "1"]) == 0
    target = home / "outputs" / "figures" / "theory.ipynb"
    assert nbformat.read(target, as_version=4).cells[-1].outputs[0].text == "1\n"
    drawn = target.stat().st_mtime_ns
    capsys.readouterr()
    assert cli.main(["run", "figures", "-j", "1"]) == 0
    assert "done: 0 notebooks" in capsys.readouterr().err
    assert target.stat().st_mtime_ns == drawn
    write_notebook(home / "notebooks" / "theory.ipynb", "print(2 * size)", parameters="size = 1")
    assert [t.name for t in plans.plan_figures().drawings] == ["theory"]
    assert cli.main(["run", "figures", "--dataset", "spiral"]) == 2

    # a profile that sets its parameters draws it too, with these
    folder = home / "params" / "tiny" / "figures"
    folder.mkdir()
    (folder / "theory.yaml").write_text("size: 3")
    assert "theory" in [t.name for t in plans.plan(prepare(Selection("tiny"))).drawings]
    part = plans.plan(prepare(Selection("tiny", ["spiral"])))
    assert "theory" not in [t.name for t in part.drawings], "not with a part of the profile"


def test_a_digest_covers_the_modules_that_a_notebook_uses(tmp_path):
    path = tmp_path / "n.ipynb"
    write_notebook(path, "%matplotlib inline\nfrom softadlib.functional import softad")
    used = {str(p.relative_to(PACKAGE)) for p in modules_used(path)}
    assert {"functional/__init__.py", "functional/objectives.py", "__init__.py"} <= used
    assert not any(name.startswith(("workbook", "training", "experiments/audit")) for name in used)
    write_notebook(path, "from softadlib.analysis import tables")
    used = {str(p.relative_to(PACKAGE)) for p in modules_used(path)}
    assert {"analysis/tables.py", "methods.py", "analysis/paper_tables.csv"} <= used
    write_notebook(path, "x = (")
    assert PACKAGE / "workbook/cli.py" in modules_used(path), "all of it, where it cannot be read"


def test_a_profile_of_flipped_labels_alone_is_drawn_at_its_own_noise(home):
    """The notebooks' default, no noise, would find no rows."""
    values = {**TINY, "profile": "noisy", "label_noise": [0.1, 0.2]}
    (home / "params" / "noisy").mkdir()
    (home / "params" / "noisy" / "gaussian.yaml").write_text(json.dumps(values))
    tasks = plans.plan(prepare(Selection("noisy"))).drawings
    assert {task.parameters["label_noise"] for task in tasks} == {0.1}
    tasks = plans.plan(prepare(Selection("tiny"))).drawings
    assert not any("label_noise" in task.parameters for task in tasks)


def test_every_dataset_is_drawn_at_its_own_noise_and_tie_rule(home):
    folder = home / "params" / "mixed"
    folder.mkdir()
    values = {**TINY, "profile": "mixed", "ties": "smallest"}
    (folder / "gaussian.yaml").write_text(json.dumps(values))
    noisy = {"dataset": "spiral", "label_noise": [0.1], "grids": {"softad": [0.1]}}
    (folder / "spiral.yaml").write_text(json.dumps(values | noisy))
    tasks = {task.name: task for task in plans.plan(prepare(Selection("mixed"))).drawings}
    spiral = tasks["figs04-10_trajectories-spiral"].parameters
    assert (spiral["label_noise"], spiral["ties"]) == (0.1, "smallest")
    gaussian = tasks["figs04-10_trajectories-gaussian"].parameters
    assert "label_noise" not in gaussian
    assert gaussian["ties"] == "smallest"
    assert "label_noise" not in tasks["tab1_3_loss_gaps"].parameters, "one dataset has clean labels"


def test_a_notebook_is_drawn_again_when_a_file_that_it_names_changes(home):
    bench = home / "outputs" / "bench"
    bench.mkdir(parents=True)
    source = home / "notebooks" / "speed.ipynb"
    cell = nbformat.v4.new_code_cell('others = "outputs/bench/cpu*.json"  # a benchmark')
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), source)
    task = plans.Task("speed", source, home / "speed.ipynb", {})
    before = task.digest()
    (bench / "gpu.json").write_text("{}")
    assert task.digest() == before, "the notebook does not name it"
    (bench / "cpu-2.json").write_text("{}")
    added = task.digest()
    assert added != before
    (bench / "cpu-2.json").write_text("[]")
    assert task.digest() not in (before, added)
    named = plans.Task("speed", source, task.target, {"file": "outputs/bench/gpu.json"})
    before = named.digest()
    (bench / "gpu.json").write_text("[]")
    assert named.digest() != before, "a parameter names it"


def test_a_finished_audit_is_drawn(spiral_with_erm, tmp_path, monkeypatch):
    home = shutil.copytree(spiral_with_erm, tmp_path / "copy")
    monkeypatch.setenv("SOFTAD_HOME", str(home))

    def planned():
        plan = plans.plan(prepare(Selection("tiny", ["spiral"], ["erm"])))
        return [task.name for task in plan.drawings]

    assert planned() == []
    (home / "outputs" / "tiny" / "spiral" / "controls.parquet").write_bytes(b"new")
    assert "drawing" in planned()
    (home / "outputs" / "tiny" / "spiral" / "controls.parquet").unlink()
    assert planned() == []


@pytest.mark.parametrize("method", ["sam", "iflood"])
def test_one_method_is_drawn_in_the_figures_that_have_it(home, method):
    changes = {"grids": {"sam": [0.05], "iflood": [0.1], "softad": [0.1]}}
    path = home / "params" / "tiny" / "spiral.yaml"
    path.write_text(json.dumps({**TINY, "profile": "tiny", "dataset": "spiral", **changes}))
    argv = ["run", "tiny", "--dataset", "spiral", "--method", method, "-j", "1"]
    assert cli.main(argv) == 0
    page = home / "outputs" / "tiny" / "figures" / "figs04-10_trajectories-spiral.ipynb"
    cells = nbformat.read(page, as_version=4).cells
    pictures = [sum("image/png" in o.get("data", {}) for o in c.get("outputs", [])) for c in cells]
    assert sum(pictures) == 2, "one of the two figures, and the knobs"


def test_data_that_are_missing_are_not_called_trained(home, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTAD_DATA", str(tmp_path / "empty"))
    folder = home / "params" / "images"
    folder.mkdir()
    values = {**TINY, "profile": "images", "dataset": "fashionmnist"}
    (folder / "fashionmnist.yaml").write_text(json.dumps(values))
    for command in ("show", "train"):
        assert cli.main([command, "images"]) == 2
        assert "profile 'images' has no data here: fashionmnist is not under" in (
            capsys.readouterr().err
        )


def test_a_notebook_whose_packages_are_not_installed_is_named(home, capsys):
    write_notebook(home / "notebooks" / "theory.ipynb", "import numpy", parameters="size = 1")
    write_notebook(home / "notebooks" / "shop.ipynb", "import no_such.thing", parameters="size = 1")
    assert cli.main(["run", "figures", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert out == "notebooks to draw: theory\n"
    assert err.startswith(
        "softad: note: shop is not drawn; it needs no_such; install them: pip install"
    )


def test_a_notebook_that_needs_other_methods_is_not_drawn(home, capsys):
    write_notebook(
        home / "notebooks" / "pair.ipynb",
        "print(1)",
        parameters="profile: str = 'tiny'  # the results to read; needs sam and softad",
    )
    assert plans.needed_methods(home / "notebooks" / "pair.ipynb") == {"sam", "softad"}
    plan = plans.plan(prepare(Selection("tiny", ["spiral"])))
    assert plan.lacking == {"pair": "sam, softad of one dataset"}
    assert "pair" in [t.name for t in plans.plan(prepare(Selection("tiny"))).drawings]
    assert cli.main(["run", "tiny", "--dataset", "spiral", "--dry-run"]) == 0
    assert "softad: note: pair is not drawn; it needs sam, softad of one dataset" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("command", ["run", "train"])
def test_a_dry_run_says_what_is_left_and_writes_nothing(home, capsys, command):
    before = tree(home)
    assert cli.main([command, "tiny", "--dry-run", "-p", "epochs", "2", "-j", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "dataset", "method", "values", "trials", "runs", "epochs", "done", "time", "left",
    ]  # fmt: skip
    assert lines[3].split()[:7] == ["gaussian", "softad", "2", "2", "4", "2", "0%"]
    assert ("notebooks to draw" in lines[-1]) == (command == "run")
    assert tree(home) == before


def test_changed_parameters_as_a_profile_of_their_own(home, capsys):
    argv = ["train", "tiny", "--dataset", "spiral", "--method", "erm", "-j", "1"]
    assert cli.main(argv) == 0
    before = tree(home / "outputs" / "tiny")
    other = [*argv, "-p", "epochs", "2", "--as", "short"]
    same = [*argv, "--as", "copy", "--dry-run"]
    capsys.readouterr()
    for command in (same, [*other, "--dry-run"]):
        assert cli.main(command) == 0
        assert " 0% " in capsys.readouterr().out, "the new profile has no results yet"
        assert not (home / "params" / command[command.index("--as") + 1]).exists()
    assert cli.main(other) == 0
    capsys.readouterr()
    assert cli.main([*other, "--dry-run"]) == 0
    assert "everything is trained" in capsys.readouterr().out
    assert tree(home / "outputs" / "tiny") == before, "the profile's own results stay"
    assert store.read("short")["epoch"].max() == 2
    assert cli.main(["train", "short", "-j", "1"]) == 0, "it is a profile like any other"
    assert cli.main(other) == 0, "the same again is no contradiction"
    capsys.readouterr()
    assert cli.main([*argv, "-p", "epochs", "3", "--as", "short"]) == 2
    assert "has other parameters; choose another name for --as" in capsys.readouterr().err


def test_a_dry_run_names_what_it_does_not_count(home, capsys):
    argv = ["train", "tiny", "--dataset", "spiral", "--method", "erm", "-j", "1"]
    assert cli.main(argv) == 0
    before = tree(home)
    capsys.readouterr()
    assert cli.main([*argv, "--fresh", "--losses", "--dry-run"]) == 0
    fresh, losses = capsys.readouterr().err.splitlines()
    assert fresh.startswith("softad: note: --fresh forgets 2 stored runs first")
    assert losses.startswith("softad: note: --losses then trains the selected runs again")
    assert tree(home) == before


def test_nothing_need_be_writable_where_nothing_is_written(home, capsys, monkeypatch):
    def refuse(folder):
        raise UserError(f"{folder}: read-only file system")

    monkeypatch.setattr("softadlib._workspace.check_writable", refuse)
    assert cli.main(["show", "tiny"]) == 0
    assert cli.main(["train", "tiny", "--dry-run"]) == 0
    assert cli.main(["train", "tiny"]) == 2
    assert "read-only file system" in capsys.readouterr().err


def test_a_derived_profile_of_one_that_extends_holds_every_value(home, capsys):
    (home / "params/tiny/spiral.yaml").write_text("extends: tiny/gaussian\nepochs: 2\n")
    argv = [
        "train",
        "tiny",
        "--dataset",
        "spiral",
        "--method",
        "erm",
        "-j",
        "1",
        "-p",
        "lr",
        "0.05",
    ]
    assert cli.main([*argv, "--as", "slow"]) == 0
    written = load("slow", "spiral")
    source = load("tiny", "spiral", {"lr": 0.05})
    assert written == source.replace(profile="slow", grids={})
    assert "extends" not in (home / "params/slow/spiral.yaml").read_text()
    short = "extends: slow/spiral\nlr: 0.05\n"
    (home / "params/short").mkdir()
    (home / "params/short/spiral.yaml").write_text(short)
    assert cli.main([*argv, "--as", "short"]) == 0, "the same values, written shorter"
    assert (home / "params/short/spiral.yaml").read_text() == short
    (home / "params/short/spiral.yaml").write_text(short.replace("0.05", "0.2"))
    assert cli.main([*argv, "--as", "short"]) == 2
    assert "has other parameters" in capsys.readouterr().err


def test_show_lists_profiles_and_what_one_holds(home, capsys):
    assert cli.main(["show"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["tiny", "0", "gaussian,", "spiral"]
    assert cli.main(["show", "tiny", "--dataset", "spiral", "-j", "1"]) == 0
    out = capsys.readouterr().out
    assert "spiral   softad" in out
    assert "batch_size" in out
    assert cli.main(["train", "tiny", "--dataset", "spiral", "-j", "1"]) == 0
    assert cli.main(["show", "tiny", "--dataset", "spiral", "-j", "1"]) == 0
    out = capsys.readouterr().out
    assert "100%" in out
    assert "everything is trained" in out


def test_a_missing_curve_is_work_left(home, capsys):
    """Two trials of softad's two values are trained; the curves of the two selected runs are not."""
    argv = ["tiny", "--dataset", "gaussian", "--method", "softad"]
    assert cli.main(["train", *argv, "-j", "1", "-p", "curves", "none"]) == 0
    assert cli.main(["show", *argv, "-j", "1"]) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("gaussian"))
    words = line.split()
    assert words[6] == "66%", "4 of 4 runs and 2 replays"
    assert words[7:] != ["–"]


def test_the_grammar_of_addresses_is_left_out_of_these_imports_alone():
    code = (
        "import sys\n"
        "from softadlib.workbook.notebooks.imports import IRI_GRAMMAR, skip_iri_grammar\n"
        "with skip_iri_grammar():\n"
        "    import nbformat, papermill\n"
        "assert IRI_GRAMMAR not in sys.modules\n"
        "nbformat.validate(nbformat.v4.new_notebook())\n"
        "import rfc3987_syntax\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
