"""`tests/gpu_session.sh`, which `make gpu` calls: its steps, its budget, and what it needs installed."""

import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from helpers.workspace import REPOSITORY, make_home

SCRIPT = REPOSITORY / "tests" / "gpu_session.sh"
NEEDED = ("torch", "numpy", "pandas", "pyarrow", "scipy", "pydantic", "yaml", "tqdm")
"""What is imported where a machine trains without notebooks."""
FAKE = """#!/bin/sh
# Plays the check, the bench and, unless {real}, everything else.
[ "$2" = 'import papermill' ] && exit {papermill}
if [ "$1" = -m ]; then echo "$3" >> {log}; fi
case "$3" in
  check-device) exit {check} ;;
  bench) for last; do :; done; echo '{{}}' > "$last"; exit 0 ;;
esac
[ {real} = True ] && exec {python} "$@"
case "$*" in
  *is_checked*) echo {checked} ;;
  *device_name*) echo a-card ;;
  *cifar10) exit 2 ;;
  *) exec sleep {sleep} ;;
esac
"""


@pytest.fixture
def session(tmp_path):
    """Call the script on a tiny profile; returns (exit status, last line, steps so far)."""
    home, log = make_home(tmp_path / "home"), tmp_path / "steps"

    def call(check=0, sleep=0, real=False, checked=False, papermill=1, **changes):
        fake = tmp_path / "python"
        answers = {"check": check, "sleep": sleep, "checked": checked, "papermill": papermill}
        fake.write_text(FAKE.format(log=log, real=real, python=sys.executable, **answers))
        fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
        settings = {"PY": str(fake), "SOFTAD_HOME": str(home), "PROFILE": "tiny"}
        settings |= {"DEVICE": "cpu", "DATASETS": "gaussian", "OUT": str(tmp_path / "out")}
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **settings, **changes}
        done = subprocess.run(
            ["sh", str(SCRIPT)], env=environment, capture_output=True, text=True, check=False
        )
        steps = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return done.returncode, done.stdout.splitlines()[-1], steps

    return call


def test_a_session_checks_times_trains_and_copies_and_the_next_one_resumes(session, tmp_path):
    whole = session(real=True)
    assert whole == (0, "gpu_session: all is done", ["check-device", "bench", "train"])
    (table,) = (tmp_path / "out" / "outputs" / "bench").glob("cpu*.json")
    assert table.read_text() == "{}\n"
    for method in ("erm", "softad", "sam"):
        folder = tmp_path / "out" / "outputs" / "tiny" / "gaussian" / method
        assert (folder / "provenance.json").exists()


def test_what_is_checked_and_timed_is_not_checked_and_timed_again(session):
    assert session()[2] == ["check-device", "bench", "train"]
    assert session() == (0, "gpu_session: all is done", ["check-device", "train"])
    assert session(checked=True) == (0, "gpu_session: all is done", ["train"])
    assert session(checked=True, papermill=0)[2] == ["run"]


def test_nothing_is_trained_on_a_device_that_fails(session, tmp_path):
    status, line, steps = session(check=1)
    assert (status, steps) == (1, ["check-device"])
    assert "nothing is trained" in line


def test_the_budget_ends_what_runs_and_the_next_call_resumes(session):
    status, line, steps = session(sleep=60, BUDGET="5")
    assert (status, steps[-1]) == (124, "train")
    assert line == "gpu_session: the budget of 5 s is used up; the same command resumes"
    assert session()[0] == 0


def test_a_study_that_fails_does_not_keep_the_others_from_being_trained(session):
    status, line, steps = session(DATASETS="cifar10 gaussian")
    assert (status, steps[-2:]) == (1, ["train", "train"])
    assert line.endswith("the same command tries it again")


BARE = """
import builtins, sys
original = builtins.__import__
def without(name, globals=None, *rest):
    if (globals or {{}}).get("__name__", "").startswith("softadlib"):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
    return original(name, globals, *rest)
builtins.__import__ = without
from softadlib.workbook import cli
for command in {commands}:
    print(cli.main(command), file=sys.stderr)
"""


def test_training_the_check_and_the_bench_need_no_notebooks_and_no_plots(tmp_path):
    """Every package of the extras but those in `NEEDED` is missing."""
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    parts = ("workbook", "cluster", "mlflow")
    listed = [name for part in parts for name in extras["optional-dependencies"][part]]
    modules = {"pyyaml": "yaml", "scikit-learn": "sklearn", "pillow": "PIL"}
    names = {re.split(r"[><=\[]", name)[0] for name in listed}
    missing = {modules.get(name, name.replace("-", "_")) for name in names} - set(NEEDED)
    missing |= {"matplotlib", "IPython", "nbformat", "nbclient"}
    assert {"papermill", "jinja2", "joblib", "torchvision", "seaborn"} <= missing
    home = make_home(tmp_path / "home")
    environment = {**os.environ, "SOFTAD_HOME": str(home)}
    commands = [
        ["train", "tiny", "-j", "1"],
        ["check-device", "--device", "cpu", "--budget", "0"],
        ["bench", "--help"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", BARE.format(missing=missing, commands=commands)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    statuses = [line for line in done.stderr.splitlines() if line.isdigit()]
    assert statuses == ["0", "1"], "nothing is begun by a check without time; help ends the process"
    assert "usage: softad bench" in done.stdout
    assert "Traceback" not in done.stderr
    assert (home / "outputs" / "tiny" / "gaussian" / "sam" / "provenance.json").exists()


def test_the_documents_name_what_has_to_be_carried():
    text = (REPOSITORY / "outputs" / "bench" / "README.md").read_text()
    carried = {"pydantic": "pydantic", "yaml": "pyyaml", "tqdm": "tqdm"}
    for name in set(NEEDED) - {"torch", "numpy"}:
        assert carried.get(name, name) in text, name
    assert Path(SCRIPT).name in (REPOSITORY / "Makefile").read_text()
