"""Pages executed by real kernels: whole or not at all, with failures named and results missing or stored."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import nbformat
import pytest
from helpers.protocols import train
from helpers.workspace import REPOSITORY, make_home, tree, write_notebook
from papermill.translators import PythonTranslator

from softadlib._validation import UserError
from softadlib.workbook import cli
from softadlib.workbook.pages import notebooks
from softadlib.workbook.studies import results
from softadlib.workbook.studies.changes import changed_protocol, check_parameters
from softadlib.workbook.studies.params import load
from softadlib.workbook.studies.work import plan_work

LACKING = (
    "class MissingData(ValueError):\n    'Named as softadlib names it.'\n"
    "raise MissingData('no rows of spiral')"
)


def add(home, name, *cells, parameters="profile = 'paper'", **options):
    """Write a notebook, with a cell for its parameters and `cells`."""
    path = home / "notebooks" / f"{name}.ipynb"
    write_notebook(path, *cells, parameters=parameters, **options)
    return path


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


def test_run_trains_what_is_left_then_draws_also_with_a_relative_home(home, capsys, monkeypatch):
    monkeypatch.chdir(home.parent)
    monkeypatch.setenv("SOFTAD_HOME", home.name)
    shutil.copy(REPOSITORY / "notebooks/train.ipynb", home / "notebooks")
    add(home, "page", "print(profile)")
    argv = ["tiny", "--method", "erm", "-j", "2", "-p", "trials=1"]
    assert cli.main(["run", *argv]) == 0
    *_, done, following = capsys.readouterr().err.splitlines()
    assert "done: 2 notebooks in" in done
    assert following == "softad: next: softad report tiny makes one page of them"
    folder = home / "outputs/tiny"
    assert visible(folder) == ["figures", "gaussian"]
    assert visible(folder / "gaussian") == ["erm.ipynb", "erm.parquet"]
    assert "erm on gaussian: " in texts(folder / "gaussian/erm.ipynb")[0]
    assert texts(folder / "figures/page.ipynb") == ["tiny"]
    before = tree(home)
    assert cli.main(["run", *argv]) == 0
    assert "done: 0 notebooks in" in capsys.readouterr().err, "nothing is missing"
    assert tree(home) == before
    rows = results.read("tiny")
    assert cli.main(["train", *argv, "--fresh"]) == 0
    assert results.read("tiny").equals(rows), "the same table without a notebook"


def test_a_failure_is_named_in_one_line_and_the_others_are_drawn(home, capsys):
    assert cli.main(["train", "tiny", "--method", "erm", "-j", "1"]) == 0
    before = tree(home / "outputs")
    add(home, "broken", "x = 1", "raise ValueError('no such luck')")
    add(home, "lacking", LACKING)
    add(home, "dying", "import os; os.kill(os.getpid(), 9)")
    conclusions = add(home, "drawn", "print(profile)", "print('so it is')")
    document = nbformat.read(conclusions, as_version=4)
    document.cells[-1].metadata.tags = [notebooks.STORED]
    answer = nbformat.v4.new_markdown_cell("# Is it so?\n\n**Answer.** Yes.")
    answer.metadata.tags = [notebooks.STORED]
    document.cells.insert(0, answer)
    nbformat.write(document, conclusions)
    figures = home / "outputs/tiny/figures"
    capsys.readouterr()
    assert cli.main(["draw", "tiny", "-j", "2"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    stopped = "the page as it stopped: "
    assert f"broken: ValueError: no such luck; {stopped}{figures}/broken.error.ipynb\n" in err
    assert "dying: DeadKernelError: " in err
    assert f": lacking; why: {figures}/*.not-drawn.txt\n" in err
    assert (figures / "lacking.not-drawn.txt").read_text() == "no rows of spiral\n"
    assert "2 of 4 notebooks failed; the same command tries them again" in err
    failed = ["broken.error.ipynb", "drawn.ipynb", "dying.error.ipynb", "lacking.not-drawn.txt"]
    assert visible(figures) == failed
    assert texts(figures / "drawn.ipynb") == ["tiny"], "no conclusion from other results"
    assert nbformat.read(figures / "drawn.ipynb", as_version=4).cells[0].source == "# Is it so?"
    stored = {name: time for name, time in tree(home / "outputs").items() if name in before}
    assert stored == before, "nothing is trained"

    for name in ("dying", "lacking", "drawn"):
        (home / f"notebooks/{name}.ipynb").unlink()
    add(home, "broken", "print('mended')")
    assert cli.main(["draw", "tiny", "-j", "1"]) == 0
    assert texts(figures / "broken.ipynb") == ["mended"]
    assert not (figures / "broken.error.ipynb").exists()


def test_a_training_that_lacks_its_data_is_a_failure(home, capsys):
    add(home, "train", LACKING, parameters="profile = dataset = method = changes = jobs = None")
    assert cli.main(["run", "tiny", "--method", "erm", "-j", "1"]) == 1
    assert "gaussian × erm: no rows of spiral; the page as it stopped:" in capsys.readouterr().err


def test_conclusions_are_of_the_parameters_that_a_notebook_is_stored_with(home):
    add(home, "page", parameters="profile: str = 'paper'\nsize: int = 1")
    for parameters, others in (
        ({"profile": "tiny"}, True),
        ({"profile": "paper"}, False),
        ({"profile": "paper", "size": 1}, False),
        ({"profile": "paper", "size": 2}, True),
    ):
        assert notebooks.draws_other_results(page(home, "page", **parameters)) == others


def test_pages_of_a_profile_have_its_datasets_and_label_noise(tmp_path, monkeypatch):
    noisy = {"label_noise": [0.2, 0.1]}
    home = make_home(tmp_path, gaussian={}, spiral=noisy | {"grids": {"softad": [0.1]}})
    monkeypatch.setenv("SOFTAD_HOME", str(home))
    add(home, "each", parameters="profile = 'paper'\ndataset = 'gaussian'\nlabel_noise = 0.0")
    add(home, "all", parameters="profile = 'paper'\nlabel_noise = 0.0")
    add(home, "theory", parameters="size = 1")
    add(home, "own", parameters="size = 1", profiles=["tiny"])
    add(home, "others", parameters="profile_read = 'images'", profiles=["images"])
    planned = notebooks.planned_results(plan_work("tiny").studies)
    pages = notebooks.pages_of_profile("tiny", planned)
    assert {page.name: page.parameters for page in pages} == {
        "all": {"profile": "tiny"},
        "each-gaussian": {"profile": "tiny", "dataset": "gaussian"},
        "each-spiral": {"profile": "tiny", "dataset": "spiral", "label_noise": 0.1},
        "own": {},
    }
    spiral = [result for result in planned if result.dataset == "spiral"]
    pages = {page.name: page for page in notebooks.pages_of_profile("tiny", spiral)}
    assert pages["all"].parameters == {"profile": "tiny", "label_noise": 0.1}, "no label is clean"
    assert [page.name for page in notebooks.pages_of_no_profile()] == ["theory"]
    odd = add(home, "odd", profiles="paper")
    with pytest.raises(UserError, match=str(odd)):
        notebooks.pages_of_no_profile()


NEEDS = [
    ({"methods": ["erm", "softad"]}, ""),
    ({"methods": ["erm", "sam"]}, ""),
    ({"methods": ["erm", "sam"], "sets": 2}, "needs erm, sam on 2 data sets"),
    ({"methods": ["flooding"]}, "needs flooding on 1 data set"),
    ({"sets": 3}, "needs results on 3 data sets"),
    ({"of_the_paper": True}, ""),
    ({"of_the_paper": True, "sets": 2}, "needs results on 2 data sets of the paper"),
    ({"best_epochs": True}, "needs results on 1 data set with best_epoch: true"),
    (
        {"methods": ["softad"], "across_ln2": True},
        "needs softad on both sides of ln 2 on 1 data set",
    ),
]


@pytest.mark.parametrize(("needs", "lack"), NEEDS, ids=str)
def test_a_page_that_lacks_results_is_not_executed_to_find_out(home, capsys, needs, lack):
    """Two sets, one of them the paper's, where θ is below ln 2; SAM was trained on one."""
    own = json.loads((home / "params/tiny/gaussian.yaml").read_text()) | {"dataset": "digits"}
    own |= {"n_train": 0, "n_val": 0, "n_test": 0, "epochs": 1, "curves": "none", "trials": 1}
    (home / "params/tiny/digits.yaml").write_text(json.dumps(own))
    for dataset, methods in (("gaussian", "erm,sam,softad"), ("digits", "erm")):
        argv = ["train", "tiny", "--dataset", dataset, "--method", methods, "-j", "1"]
        assert cli.main(argv) == 0
    add(home, "page")
    document = json.loads((home / "notebooks/page.ipynb").read_text())
    document["metadata"]["softad"]["needs"] = needs
    (home / "notebooks/page.ipynb").write_text(json.dumps(document))
    capsys.readouterr()
    assert cli.main(["draw", "tiny", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"notebooks to draw: {'none' if lack else 'page'}"
    assert lines[:-1] == ([f"without page: {lack}"] if lack else [])
    if lack:
        assert cli.main(["draw", "tiny"]) == 0
        assert "done: 0 notebooks" in capsys.readouterr().err
        assert not (home / "outputs/tiny/figures").exists()


def test_needs_of_another_form_are_refused(home):
    path = add(home, "page")
    document = json.loads(path.read_text())
    document["metadata"]["softad"]["needs"] = {"method": ["erm"]}
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match=f"{path}: metadata softad.needs.method"):
        notebooks.pages_of_no_profile()


def test_run_draws_what_is_missing_and_draw_draws_all(tmp_path, monkeypatch, capsys):
    """What counts is whether a page is there and newer than what it reads; none is executed here."""
    home = make_home(tmp_path, gaussian={}, sinusoid={})
    monkeypatch.setenv("SOFTAD_HOME", str(home))
    assert cli.main(["train", "tiny", "--method", "erm", "-j", "1"]) == 0
    add(home, "count")
    add(home, "lacking")
    each = add(home, "each", parameters="profile = 'paper'\ndataset = 'gaussian'")
    figures = home / "outputs/tiny/figures"
    figures.mkdir()

    def planned(*argv):
        capsys.readouterr()
        assert cli.main([*argv, "--dry-run"]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        return last.removeprefix("notebooks to draw: ").split(", ")

    run = ("run", "tiny", "--method", "erm")
    every = ["count", "each-gaussian", "each-sinusoid", "lacking"]
    assert planned(*run) == every
    assert planned(*run, "--dataset", "sinusoid") == ["each-sinusoid"]
    (figures / "each-sinusoid.ipynb").touch()
    assert planned(*run) == ["count", "each-gaussian", "lacking"]
    for name in ("count.ipynb", "each-gaussian.ipynb", "lacking.not-drawn.txt"):
        (figures / name).touch()
    assert planned(*run) == ["none"], "what cannot be drawn is not tried again"
    assert planned("draw", "tiny") == every
    assert planned("draw", "tiny", "--dataset", "gaussian") == ["count", "each-gaussian", "lacking"]
    os.utime(home / "outputs/tiny/gaussian/erm.parquet")
    assert planned(*run) == ["count", "each-gaussian", "lacking"], "its results are newer"
    os.utime(each)
    assert planned(*run) == every


def test_who_stops_iterating_goes_on(home):
    """The pages that have begun end, no other one is begun, and the process lives."""
    for number in range(3):
        add(home, f"page{number}", parameters="size = 1")
    pages = [page(home, f"page{number}") for number in range(3)]
    for outcome in notebooks.execute(pages, jobs=1):
        assert outcome.error == ""
        break
    drawn = visible(home / "outputs/tiny/figures")
    assert outcome.page.target.name in drawn
    assert len(drawn) < 3


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stopped_command_leaves_no_page_and_no_kernel(home):
    """The page is written after each cell, so it is stopped at any moment."""
    begin = "import os; open('begun', 'w').write(str(os.getpid()))"
    add(home, "slow", begin, *["pass"] * 600, parameters="size = 1")
    command = subprocess.Popen(
        [sys.executable, "-m", "softadlib", "draw", "-j", "1"],
        env={**os.environ, "SOFTAD_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    begun = home / "notebooks/begun"
    while not begun.exists() or not begun.read_text():
        assert command.poll() is None
        time.sleep(0.05)
    kernel = int(begun.read_text())
    command.send_signal(signal.SIGTERM)
    out, err = command.communicate(timeout=60)
    assert (command.returncode, out) == (143, "")
    assert err.splitlines()[-1].endswith("softad: stopped; the same command resumes")
    assert "Traceback" not in err
    assert list((home / "outputs").rglob("*.ipynb")) == []
    running = Path(f"/proc/{kernel}/cmdline")  # empty once it has ended
    while running.exists() and running.read_bytes():
        time.sleep(0.1)


# Parameters of the training page


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        ("softda", None, ["'softda'", "choose from erm, sam, softad"]),
        ("erm", "{epoch: 3}", ["'epoch'", "choose from trials, label_noise, grids"]),
        ("erm", "{learning_rate: 3}", ["'learning_rate'", "mean 'lr'"]),
        ("erm", "3", ["changes", "{NAME: VALUE}", "3"]),
        ("softad", {"theta": 0.1}, ["theta belongs to a method", "grids.softad"]),
        ("softad", {"dataset": "spiral"}, ["dataset", "parameter of the page"]),
    ],
)
def test_bad_parameters_of_a_page_are_refused(home, method, changes, words):
    before = tree(home)
    with pytest.raises(UserError) as refusal:
        changed_protocol("tiny", "gaussian", method, changes)
    assert [word for word in words if word not in str(refusal.value)] == []
    assert tree(home) == before


def test_a_page_says_on_the_way_how_long_its_training_takes(home, capsys):
    said = r"spiral × softad: 0%| run\rsoftad: spiral × softad: about 5 min\nelse"
    add(home, "page", f"import sys; print('{said}', file=sys.stderr)")
    (outcome,) = notebooks.execute([page(home, "page")], 1)
    assert not outcome.failed
    assert capsys.readouterr().err.splitlines() == ["softad: spiral × softad: about 5 min"]


def test_changed_parameters_of_a_page_have_a_profile_of_their_own(home):
    tiny = load("tiny", "gaussian")
    assert changed_protocol("tiny", "gaussian", "softad") == tiny
    changes = "{lr: 0.01, epochs: 2, trials: 1, grids.softad: [0.2, 0.3]}"
    changed = changed_protocol("tiny", "gaussian", "softad", changes)
    name = "try-tiny-epochs-2-softad-0.2-0.3-lr-0.01-trials-1"
    grids = {**tiny.grids, "softad": [0.2, 0.3]}
    same = tiny.replace(profile=name, lr=0.01, epochs=2, trials=1, grids=grids)
    assert changed == same == load(name, "gaussian")
    named = changed_protocol("tiny", "gaussian", "softad", {"lr": 0.01}, as_profile="slow")
    assert named == tiny.replace(profile="slow", lr=0.01)
    many = {"grids.softad": [number / 100 for number in range(40)]}
    short = changed_protocol("tiny", "gaussian", "softad", many).profile
    assert short.startswith("try-tiny-")
    assert len(short) < 20


def test_git_ignores_a_profile_of_a_try_and_no_other(home):
    shutil.copy(REPOSITORY / ".gitignore", home)
    subprocess.run(["git", "-C", str(home), "init", "-q"], check=True)
    tried = changed_protocol("tiny", "gaussian", "softad", {"lr": 0.01}).profile
    kept = changed_protocol("tiny", "gaussian", "softad", {"lr": 0.01}, "slow").profile
    paths = [f"params/{name}/gaussian.yaml" for name in (tried, kept)]
    check = ["git", "-C", str(home), "check-ignore", *paths]
    assert subprocess.run(check, capture_output=True, text=True).stdout.split() == paths[:1]


def test_an_unknown_parameter_stops_a_page(monkeypatch):
    """The cells of the training page as a kernel has them, the second as papermill writes it."""
    page = nbformat.read(REPOSITORY / "notebooks/train.ipynb", as_version=4)
    own = next(cell.source for cell in page.cells if cell.cell_type == "code")

    def check(**parameters):
        executed = {"In": ["", own, PythonTranslator.codify(parameters), "check_parameters()"]}
        kernel = types.SimpleNamespace(user_ns=executed)
        monkeypatch.setattr("IPython.get_ipython", lambda: kernel)
        check_parameters()

    check(jobs=3, changes={"dtype": "float64"})
    with pytest.raises(UserError, match=r"parameter 'metod' unknown; choose from profile, dataset"):
        check(jobs=3, metod="erm")
    with pytest.raises(
        UserError, match=r"parameter 'lr' is of the profile; give changes={lr: VALUE}"
    ):
        check(lr=3)


def test_papermill_trains_with_changed_parameters_under_another_name(home):
    assert cli.main(["train", "tiny", "--method", "softad", "-j", "1"]) == 0
    before = tree(home)
    given = ["-p", "profile", "tiny"]
    given += ["-p", "changes", "{lr: 0.01, epochs: 2, trials: 1, grids.softad: 0.2}"]
    source = str(REPOSITORY / "notebooks/train.ipynb")
    command = [sys.executable, "-m", "papermill", source, str(home / "out.ipynb"), "-k", "python3"]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([*command, *given], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "unknown parameter" not in done.stderr
    assert {name: tree(home)[name] for name in before} == before
    rows = results.read("try-tiny-epochs-2-softad-0.2-lr-0.01-trials-1", final=True)
    assert rows[["epoch", "trial", "knob"]].to_numpy().tolist() == [[2, 0, 0.2]]
    changes = {"lr": 0.01, "epochs": 2, "trials": 1, "grids.softad": 0.2}
    again = train(load("tiny", "gaussian", changes).replace(profile="other"), "softad")
    assert rows["loss_test"].tolist() == results.final(again)["loss_test"].tolist()
