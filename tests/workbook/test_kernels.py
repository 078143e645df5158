"""Kernels forked from one process: each as a stock kernel is, none left behind. Real processes."""

import json
import os
import signal
import subprocess
import sys
import time

import nbformat
import pytest
from helpers.workspace import make_home, write_notebook

from softadlib.workbook import cli

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernels are forked on Linux alone")

PROCESS = (
    "import os, sys; fresh = 'seaborn' not in sys.modules; print(os.getpid(), os.getppid(), fresh)"
)
DISTURB = """
import os, random, sys, matplotlib.pyplot as plt, numpy as np, seaborn, torch
os.environ["DISTURBED"] = "1"
os.chdir("/")
sys.path.insert(0, "/disturbed")
random.seed(0), np.random.seed(0), torch.manual_seed(0)
torch.set_num_threads(2), torch.set_default_dtype(torch.float64)
seaborn.set_theme(style="darkgrid"), plt.rcParams.update({"lines.linewidth": 9})
np.disturbed = True
"""
STATE = """
import json, os, sys, matplotlib.pyplot as plt, numpy as np, pandas as pd, torch
session = ("JPY_", "PYDEVD", "PYTEST", "OMP_", "MPLBACKEND", "SOFTAD_LOCK", "COLUMNS", "LINES")
state = {
    "environment": {k: v for k, v in os.environ.items() if not k.startswith(session)},
    "threads": [torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]],
    "backend": [plt.get_backend(), os.environ["MPLBACKEND"]],
    "folder": os.getcwd(), "path": sys.path, "argv": os.path.basename(sys.argv[0]).split(".")[0],
    "dtype": str(torch.get_default_dtype()),
    "rc": {k: str(v) for k, v in plt.rcParams.items()}, "disturbed": hasattr(np, "disturbed"),
    "pandas": {k: str(v).lower() for k, v in vars(pd.options.display)["d"].items()},
    "main": __name__,
}
print(json.dumps(state))
"""
PICTURE = """
import matplotlib.pyplot as plt
from softadlib.analysis.plotting import curves
curves.use_style()
plt.plot([1, 3, 2], label="loss"); plt.legend(); plt.title("θ = 0.1"); plt.show()
"""
RANDOM = (
    "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1).item())"
)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return make_home(tmp_path)


def outputs(path):
    """What the cells of a notebook put out, by cell."""
    cells = nbformat.read(path, as_version=4).cells
    return [
        [dict(o.get("data", {"text/plain": o.get("text", "")})) for o in c.outputs] for c in cells
    ]


def printed(path, cell):
    """The text that a cell prints."""
    return outputs(path)[cell][0]["text/plain"]


def test_a_kernel_is_as_a_stock_one_whatever_ran_before(home):
    sources = home / "notebooks"
    write_notebook(sources / "a.ipynb", PROCESS, DISTURB, RANDOM, parameters="size = 1")
    write_notebook(sources / "b.ipynb", PROCESS, STATE, PICTURE, RANDOM, parameters="size = 1")
    write_notebook(sources / "c.ipynb", PROCESS, STATE, PICTURE, RANDOM, parameters="size = 1")
    assert cli.main(["run", "figures", "-j", "1"]) == 0
    command = ["-m", "papermill", sources / "b.ipynb", home / "stock.ipynb", "-k", "python3"]
    stock = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)
    assert stock.returncode == 0, stock.stderr[-2000:]

    a, b, c = (home / "outputs" / "figures" / f"{name}.ipynb" for name in "abc")
    kernels = [printed(path, 1).split() for path in (a, b, c)]
    assert len({kernel[0] for kernel in kernels}) == 3, "a process for each"
    assert len({kernel[1] for kernel in kernels}) == 1, "forked from one"
    assert {kernel[2] for kernel in kernels} == {"False"}, "which has imported the packages"
    assert printed(home / "stock.ipynb", 1).split()[2] == "True"

    expected = json.loads(printed(home / "stock.ipynb", 2))
    for path in (b, c):
        state = json.loads(printed(path, 2))
        for name, value in expected.items():
            assert state[name] == value, name
        assert outputs(path)[3] == outputs(home / "stock.ipynb")[3], "the same picture, bit for bit"
    draws = [number for path in (b, c) for number in printed(path, 4).split()]
    assert len(set(draws)) == 6, "unseeded random numbers differ"


def wait_until_gone(pids, seconds=60):
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if os.path.exists(f"/proc/{pid}")]:
        assert time.monotonic() < deadline, f"processes {left} stay"
        time.sleep(0.1)


def start(home):
    """Start `softad run figures`, of notebooks that say who they are and sleep."""
    for name in "ab":
        cell = (
            "import os, time\n"
            f"open(f'{{os.environ[\"SOFTAD_HOME\"]}}/{name}.pids', 'w').write(f'{{os.getpid()}} {{os.getppid()}}')\n"
            "time.sleep(600)"
        )
        write_notebook(home / "notebooks" / f"{name}.ipynb", cell, parameters="size = 1")
    code = (
        "import signal; signal.signal(2, signal.default_int_handler)\n"
        "from softadlib.workbook import cli; raise SystemExit(cli.main(['run', 'figures', '-j', '2']))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(("number", "status"), [
    (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9),
])  # fmt: skip
def test_no_process_outlives_the_command(home, number, status):
    run = start(home)
    notes = [home / "a.pids", home / "b.pids"]
    deadline = time.monotonic() + 120
    while not all(path.exists() and path.read_text() for path in notes):
        assert time.monotonic() < deadline
        assert run.poll() is None, run.stderr.read()
        time.sleep(0.1)
    run.send_signal(number)
    _, err = run.communicate(timeout=90)  # until the last process that could write has ended
    assert run.returncode == status
    assert "Traceback" not in err
    wait_until_gone({pid for path in notes for pid in path.read_text().split()})
    left = [p.name for p in (home / "outputs" / "figures").iterdir() if not p.name.endswith("lock")]
    assert not left or number == signal.SIGKILL, left


def test_a_command_and_what_it_starts_say_nothing_beside_its_own_lines(home):
    """What the server of kernels prints as it ends stands in the terminal too."""
    write_notebook(home / "notebooks" / "a.ipynb", "size", parameters="size = 1")
    command = [sys.executable, "-m", "softadlib.workbook.cli", "run", "figures", "-j", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("softad: ")] == []


@pytest.mark.parametrize("seconds", [3, 8])
def test_ctrl_c_while_the_packages_are_imported(home, seconds):
    run = start(home)
    time.sleep(seconds)
    os.killpg(run.pid, signal.SIGINT)
    _, err = run.communicate(timeout=90)
    assert run.returncode == 130, err
    assert err.splitlines()[-1] == "softad: stopped; the same command resumes"
    assert "Traceback" not in err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_no_exception_passes_through_an_import(tmp_path, monkeypatch, number, status):
    """Where C++ of a package calls Python, an exception would abort the process."""
    (tmp_path / "package.py").write_text(  # stands for one that a command imports
        "import os\n"
        "try:\n"
        f"    os.kill(os.getpid(), {number:d})\n"
        "    for _ in range(10**6): pass\n"
        "except BaseException:\n"
        "    os.abort()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    code = (
        "import signal; signal.signal(2, signal.default_int_handler)\n"
        "from softadlib.workbook import cli, commands\n"
        "commands.bench = lambda args: __import__('package')\n"
        "raise SystemExit(cli.main(['bench']))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == status, run.stderr
    assert run.stderr == "softad: stopped; the same command resumes\n"


def test_two_sigterms_at_once_are_one_and_a_later_one_kills():
    """`timeout` and `scancel` signal a process and its group, so that it is sent SIGTERM twice."""
    code = (
        "import os, signal, sys, time\n"
        "from softadlib.workbook import cli, commands\n"
        "def work(args):\n"
        "    try: os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)\n"
        "    finally: time.sleep(float(os.environ['PAUSE'])); os.kill(os.getpid(), signal.SIGTERM)\n"
        "commands.bench = work\n"
        "raise SystemExit(cli.main(['bench']))"
    )
    for pause, status in (("0", 143), ("1.5", -signal.SIGTERM)):
        run = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PAUSE": pause}, capture_output=True
        )
        assert run.returncode == status, run.stderr
