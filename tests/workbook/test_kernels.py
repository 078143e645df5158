"""Kernels that lose messages, start slowly or hold another package: the page ends, with this package."""

import json
import sys
from pathlib import Path

import nbformat
import pytest
from helpers.workspace import write_notebook

import softadlib
from softadlib.workbook.pages import kernels, notebooks

LOSE_THE_REPLY = """\
session = get_ipython().kernel.session
send = session.send
def lose_one(stream, kind, *args, **kwargs):
    if kind == "execute_reply":
        session.send = send
        return {"content": {"status": "lost"}}
    return send(stream, kind, *args, **kwargs)
session.send = lose_one
"""
OVERLOOK_A_REQUEST = """\
kernel = get_ipython().kernel
dispatch = kernel.dispatch_shell
overlooked = []
async def late(*args, **kwargs):
    if not overlooked:
        overlooked.append((args, kwargs))
        return
    kernel.dispatch_shell = dispatch
    first, words = overlooked.pop()
    await dispatch(*first, **words)
    await dispatch(*args, **kwargs)
kernel.dispatch_shell = late
"""


@pytest.fixture
def execute(home, monkeypatch):
    """Execute a notebook of these cells by kernels of which a second of silence is enough."""
    monkeypatch.setattr(kernels, "PATIENCE", 1.0)

    def execute(*cells):
        source = home / "notebooks/page.ipynb"
        write_notebook(source, *cells, parameters="size = 1")
        page = notebooks.Page("page", source, home / "outputs/figures/page.ipynb", {})
        (outcome,) = notebooks.execute([page], 1)
        return outcome

    return execute


def printed(path):
    """Return what the cells of an executed notebook printed."""
    cells = nbformat.read(path, as_version=4).cells
    return [o["text"].strip() for c in cells for o in c.get("outputs", ()) if "text" in o]


def test_a_page_whose_reply_is_lost_goes_on(execute):
    outcome = execute(f"print('before')\n{LOSE_THE_REPLY}", "print('after')")
    assert outcome.error == ""
    assert printed(outcome.page.target) == ["before", "after"]


def test_a_cell_that_raised_and_whose_reply_is_lost_fails(execute):
    outcome = execute(f"{LOSE_THE_REPLY}raise ValueError('no such luck')", "print('after')")
    assert "page: ValueError: no such luck; the page as it stopped: " in outcome.error
    assert printed(outcome.page.target.with_name("page.error.ipynb")) == []


def test_a_request_that_the_kernel_overlooks_is_read_when_it_is_asked_again(execute):
    outcome = execute(OVERLOOK_A_REQUEST, "print('late')")
    assert outcome.error == ""
    assert printed(outcome.page.target) == ["late"]


def test_the_last_question_is_asked_again(execute):
    """After the cells papermill asks for the kernel's language."""
    assert execute("print('last')", OVERLOOK_A_REQUEST).error == ""


def test_a_cell_may_take_longer_than_the_patience(execute):
    outcome = execute("import time; time.sleep(4)", "print('awake')")
    assert outcome.error == ""
    assert printed(outcome.page.target) == ["awake"]


def test_the_kernel_has_this_interpreter_and_this_package(home, tmp_path, monkeypatch, execute):
    """A kernel `python3` of another environment is installed, and a variable names another package."""
    other = tmp_path / "other"
    (other / "softadlib").mkdir(parents=True)
    (other / "softadlib/__init__.py").write_text("__version__ = 'other'\n")
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3",
        "language": "python",
        "env": {"PYTHONPATH": str(other)},
    }
    folder = tmp_path / "jupyter/kernels/python3"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("PYTHONPATH", str(other))
    outcome = execute("import softadlib, sys; print(softadlib.__file__, sys.executable)")
    assert outcome.error == ""
    assert printed(outcome.page.target) == [f"{softadlib.__file__} {sys.executable}"]


def test_a_kernel_takes_no_port(execute):
    """Another process could take it first, and the page would fail."""
    outcome = execute(
        "from ipykernel.connect import get_connection_info\nprint(get_connection_info())"
    )
    facts = json.loads(printed(outcome.page.target)[0])
    assert facts["transport"] == "ipc"
    assert not Path(facts["ip"]).parent.exists(), "its files are gone"


def test_a_refusal_in_a_notebook_is_one_line(execute):
    outcome = execute("from softadlib import SoftAD\nSoftAD(theta='much')")
    (cell,) = [
        cell
        for cell in nbformat.read(outcome.page.target.with_name("page.error.ipynb"), 4).cells
        if cell.get("outputs") and cell.outputs[0].output_type == "error"
    ]
    (line,) = cell.outputs[0].traceback
    assert line == "UserError: theta must be a finite number, got 'much'"
