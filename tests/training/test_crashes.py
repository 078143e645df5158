"""What may happen to a session, done to real processes: at most what was in flight is lost."""

import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
from helpers.workspace import REPOSITORY, make_home, tree, without_progress

MOMENTS = 20
SETTINGS = {
    "epochs": 30,
    "trials": 2,
    "checkpoint_every": 7,
    "curve_every": 10,
    "grids": {"softad": [0.05, 0.3]},
    "stack": 2,
}
CLEAN = ["metrics.parquet", "provenance.json", "selected.parquet"]


@pytest.fixture(scope="module")
def zygote():
    """The process that starts the others."""
    process = subprocess.Popen(
        [sys.executable, "-m", "helpers.forkserver"],
        cwd=REPOSITORY / "tests",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()


class Command:
    """`softad ARGV`, each in a process of its own."""

    def __init__(self, home, zygote):
        self.home, self.log, self.zygote = home, home / "log.txt", zygote

    def start(self, *argv):
        """Its process id."""
        self.log.write_text("")
        return int(self._ask(json.dumps([str(self.home), str(self.log), *argv])))

    def wait(self):
        """The exit status of the one started last, negative for a signal."""
        return int(self._ask(""))

    def run(self, *argv):
        self.start(*argv)
        return self.wait()

    def run_until(self, work, *argv):
        """Start it, and come back when it has used `work` seconds of a processor, or ended."""
        pid = self.start(*argv)
        process, whole = psutil.Process(pid), work // 0.02 * 0.02  # as finely as the system counts
        while process.status() != psutil.STATUS_ZOMBIE and sum(process.cpu_times()[:2]) < whole:
            time.sleep(0.002)
        time.sleep(work - whole)
        return pid

    def _ask(self, line):
        self.zygote.stdin.write(line + "\n")
        self.zygote.stdin.flush()
        return self.zygote.stdout.readline()

    def said(self):
        """The lines that the last one printed, without those of progress."""
        return without_progress(self.log.read_text().splitlines())


def processes(home):
    """Those that know of this home."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SOFTAD_HOME") == str(home):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return [p for p in found if p.status() != psutil.STATUS_ZOMBIE]


def left_of(home, seconds=60.0):
    """The processes of this home that do not end soon."""
    until = time.monotonic() + seconds
    while left := processes(home):
        if time.monotonic() > until:
            return [p.cmdline() for p in left]
        time.sleep(0.1)
    return []


def await_file(home, pattern, seconds=90.0):
    until = time.monotonic() + seconds
    while not (found := list((home / "outputs").rglob(pattern))):
        assert time.monotonic() < until, f"no {pattern}"
        time.sleep(0.02)
    return found[0]


@pytest.fixture
def home(tmp_path):
    return make_home(tmp_path, ("train",), gaussian=SETTINGS)


@pytest.fixture
def softad(home, zygote):
    yield Command(home, zygote)
    for process in processes(home):
        process.kill()


def results(home):
    """Rows of every method, by their bits."""
    folder = home / "outputs" / "tiny" / "gaussian"
    return {
        p.name: pd.read_parquet(p / "metrics.parquet")
        for p in sorted(folder.iterdir())
        if p.is_dir()
    }


def assert_as(home, expected):
    """The rows of an undisturbed run, and nothing beside them."""
    got = results(home)
    assert list(got) == list(expected)
    for method, rows in expected.items():
        pd.testing.assert_frame_equal(got[method], rows, check_exact=True)
    left = [p for p in (home / "outputs").rglob("*") if p.is_file() and p.name not in CLEAN]
    assert not [
        p for p in left if p.name not in (".log", "train.ipynb") and not p.name.endswith("lock")
    ]


def assert_whole(home):
    """Every file that has its own name can be read."""
    for path in (home / "outputs").rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            if path.suffix == ".parquet":
                pd.read_parquet(path)
            elif path.suffix == ".json":
                json.loads(path.read_text())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, zygote):
    """Rows, and the processor time that a call takes, whatever else the machine does."""
    home = make_home(tmp_path_factory.mktemp("whole"), gaussian=SETTINGS)
    command = Command(home, zygote)
    process = psutil.Process(command.start("train", "tiny", "-j", "1"))
    while process.status() != psutil.STATUS_ZOMBIE:
        seconds = sum(process.cpu_times()[:2])
        time.sleep(0.01)
    assert command.wait() == 0
    return results(home), seconds


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda n: n.name)
def test_killed_at_ten_moments(softad, home, undisturbed, number):
    """Twenty for both. Seeded, one in each tenth of the time that a call takes."""
    expected, seconds = undisturbed
    draw, cut = random.Random(f"{number}"), 0
    for tenth in range(MOMENTS // 2):
        shutil.rmtree(home / "outputs", ignore_errors=True)
        moment = seconds * (tenth + draw.random()) / (MOMENTS // 2)
        pid = softad.run_until(moment, "train", "tiny", "-j", "1")
        os.kill(pid, number)
        status = softad.wait()
        assert status in (0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM)
        if number == signal.SIGTERM and status > 0:
            assert softad.said() == ["softad: stopped; the same command resumes"]
        cut += status != 0
        assert_whole(home)
        assert softad.run("train", "tiny", "-j", "1") == 0, softad.said()
        # where runs were kept it says so, and nothing else
        assert all(line.endswith("runs are trained already") for line in softad.said())
        assert_as(home, expected)
    assert cut >= MOMENTS // 4, "the calls were cut, most of them"


def test_killed_again_and_again_it_still_gets_there(softad, home, undisturbed):
    """Ever later in the call, until one ends before it is killed."""
    expected, seconds = undisturbed
    draw = random.Random(7)
    for call in itertools.count():
        moment = seconds * (0.3 + 0.03 * call + 0.1 * draw.random())
        pid = softad.run_until(moment, "train", "tiny", "-j", "1")
        os.kill(pid, signal.SIGKILL)
        if softad.wait() == 0:
            break
    assert call > 1, "the first calls were cut"
    assert_as(home, expected)


def long(home, **changes):
    """A protocol that goes on for hours."""
    shutil.rmtree(home / "params")
    shutil.rmtree(home / "notebooks")
    make_home(home, ("train",), gaussian={**SETTINGS, "epochs": 10**6, **changes})


def lasting(home):
    """The paths of the outputs that no training under way writes anew: not progress, not checkpoints."""
    return [
        path
        for path in tree(home / "outputs")
        if not re.search(r"progress\.json|checkpoints", path)
    ]


def test_two_at_once_the_second_is_refused_and_a_killed_one_holds_nothing(softad, home):
    long(home)
    first = softad.start("train", "tiny", "-j", "1")
    await_file(home, "progress.json")
    for verb in (("train",), ("run",), ("train", "--method", "softad"), ("train", "--fresh")):
        before = lasting(home)
        assert softad.run(verb[0], "tiny", "-j", "1", *verb[1:]) == 2
        (line,) = softad.said()
        method = "softad" if "softad" in verb else "erm"
        assert f"tiny: gaussian × {method} is under way already, by process {first} on" in line
        assert "wait for it or stop it" in line
        assert lasting(home) == before
    os.kill(first, signal.SIGKILL)
    softad.wait()
    assert softad.run("train", "tiny", "-j", "1", "-p", "epochs", "4") == 0
    hidden = [path.name for path in (home / "outputs").rglob(".*")]
    assert all(name.endswith("lock") for name in hidden), (
        "lock files stay, half-written ones do not"
    )


def test_a_worker_that_is_killed_ends_the_command_with_one_line(softad, home):
    """As the system does where memory runs out."""
    long(home)
    softad.start("train", "tiny", "-j", "2", "--method", "softad")
    await_file(home, "checkpoints/*")
    workers = [p for p in processes(home) if "LokyProcess" in " ".join(p.cmdline())]
    workers[0].kill()
    assert softad.wait() == 2
    assert left_of(home) == []  # before the log is read: the last to end, too, may write there
    (line,) = softad.said()
    assert line.startswith(
        "softad: a process was killed, as the system does where memory runs out; "
    )


@pytest.mark.slow
def test_a_kernel_that_dies_or_never_ends(softad, home):
    """While it trains: one line, no process left, and what was stored is gone on from."""
    long(home)
    argv = ("run", "tiny", "-j", "1", "--method", "softad")
    assert softad.run(*argv, "--timeout", "4") == 1  # in whichever cell that is
    line, *again, count = softad.said()
    assert again in ([], [line]), "as it happens, and at the end"
    assert line.startswith("softad: gaussian × softad failed in notebooks/train.ipynb In [")
    assert "Timeout" in line
    assert count == "softad: 1 of 1 notebooks failed; the same command tries them again"
    assert left_of(home) == []
    shutil.rmtree(home / "outputs")
    long(home, epochs=1000, curve_every=500, checkpoint_every=50)
    driver = softad.start(*argv)
    await_file(home, "*.pt")
    below = psutil.Process(driver).children(recursive=True)
    # Of these a kernel alone leads a session.
    (kernel,) = [process for process in below if os.getsid(process.pid) == process.pid]
    kernel.kill()
    assert softad.wait() == 1
    assert "failed in notebooks/train.ipynb In [" in softad.said()[0]
    assert left_of(home) == []
    assert softad.run("train", "tiny", "-j", "1", "--method", "softad") == 0
    facts = json.loads((home / "outputs/tiny/gaussian/softad/provenance.json").read_text())
    assert sum(s["runs_trained"] for s in facts["sessions"]) <= 4
    resumed = [s.get("epochs_resumed", 0) for s in facts["sessions"]]
    assert any(resumed) or facts["sessions"][0]["runs_trained"] < 4, "begun anew"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "number", "status"),
    [("run", signal.SIGINT, 130), ("train", signal.SIGINT, 130), ("run", signal.SIGKILL, -9)],
    ids=["Ctrl-C of run", "Ctrl-C of train", "SIGKILL of run"],
)
def test_no_process_outlives_its_driver(softad, home, verb, number, status):
    """Two jobs: workers, kernels and their helpers."""
    long(home, stack=1)
    driver = softad.start(verb, "tiny", "-j", "2")
    await_file(
        home, "*.pt"
    )  # a worker that is only being started would say so, by joblib's traceback
    assert len(processes(home)) >= 3
    os.kill(driver, number)
    assert softad.wait() == status
    assert left_of(home) == []
    if status > 0:  # this process ends without the last words that loky has in an ordinary one
        said = [line for line in softad.said() if "resource_tracker" not in line]
        assert said[0] == "softad: stopped; the same command resumes"
        assert not [line for line in said if "Traceback" in line], "\n".join(said)


# Disks

INSIDE = """
import contextlib, io, json, os, sys
from pathlib import Path
from softadlib.workbook import cli
home = Path(os.environ["SOFTAD_HOME"])
def softad(*argv):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = cli.main([*argv, "-j", "1"])
    files = sorted(str(p.relative_to(home)) for p in (home / "outputs").rglob("*") if p.is_file())
    files = [name for name in files if not name.endswith("lock")]
    print(json.dumps([status, said.getvalue().splitlines(), files]))
"""


def inside(home, mount, script):
    """Run a script where `outputs/` is a mount of its own; nothing is mounted for anybody else."""
    (home / "outputs").mkdir()
    (home / "script.py").write_text(INSIDE + script)
    shell = f'mount {mount} tmpfs "$SOFTAD_HOME/outputs" && exec "$0" "$SOFTAD_HOME/script.py"'
    for rights in (["--mount"], ["--user", "--map-root-user", "--mount"]):
        tried = ["unshare", *rights, "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
        if shutil.which("unshare") and not subprocess.run(tried, capture_output=True).returncode:
            break
    else:
        pytest.skip("this user may mount nothing, not even in a namespace of its own")
    done = subprocess.run(
        ["unshare", *rights, "sh", "-c", shell, sys.executable],
        env={**os.environ, "SOFTAD_HOME": str(home)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_full_disk_is_one_line_and_once_there_is_room_it_goes_on(home):
    """A tmpfs, in a mount namespace of the test's own."""
    script = """
filler = home / "outputs" / "filler"
with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
    while True:
        file.write(bytes(4096))
os.truncate(filler, filler.stat().st_size - 3 * 4096)
softad("train", "tiny")
filler.unlink()
softad("train", "tiny")
"""
    full, after = inside(home, "-t tmpfs -o size=1m", script)
    assert full[0] == 2
    (line,) = full[1]
    assert line.startswith(f"softad: {home}/outputs/tiny/gaussian/erm/")
    assert line.endswith("cannot be written: No space left on device")
    assert [p for p in full[2] if "progress" not in p] == ["outputs/filler"], "nothing half-written"
    assert (after[0], without_progress(after[1])) == (0, [])
    assert {Path(p).name for p in after[2]} == set(CLEAN)


def test_a_limit_on_the_size_of_files_is_the_same_without_rights_to_mount(home, monkeypatch):
    """RLIMIT_FSIZE: what a quota says, in another process."""
    script = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
softad("train", "tiny")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
softad("train", "tiny")
"""
    (home / "script.py").write_text(INSIDE + script)
    done = subprocess.run(
        [sys.executable, home / "script.py"], env={**os.environ, "SOFTAD_HOME": str(home)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    full, after = (json.loads(line) for line in done.stdout.splitlines())
    assert full[0] == 2
    assert full[1][0].endswith("cannot be written: File too large")
    assert [p for p in full[2] if "progress" not in p] == []
    assert (after[0], without_progress(after[1])) == (0, [])


def test_a_read_only_folder_is_one_line(home):
    """A read-only mount: rights do not bind root."""
    script = """
softad("train", "tiny")
softad("run", "tiny")
"""
    for status, said, files in inside(home, "-t tmpfs -o ro", script):
        assert status == 2
        assert said == [f"softad: {home}/outputs/tiny cannot be written: Read-only file system"]
        assert files == []
