"""A study is killed at every single file operation, and the same call then ends with the same rows.

A child process works on a study, and is killed by SIGKILL right before its k-th change of a file or
folder below `outputs/`, for k = 1, 2, … to the last one. What is on the disk after the k-th change is
what is there before the next one, so every state that a kill can leave is seen. Then the call is made
again, to its end. Changes are counted by Python's audit events: no function is replaced.

`python test_kill_sweep.py FOLDER` does it all and prints JSON. It is a process of its own with one
thread, so that it can be forked after torch was imported once.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

ONE = {"trials": 1, "epochs": 2}
TWO = {"trials": 2, "epochs": 2}
SHARDS = [{"changes": TWO, "shard": (i, 2)} for i in (1, 2)]
CASES = {
    "first pass and replay": {"method": "softad", "changes": ONE},
    "states inside of a run": {"method": "erm", "changes": ONE | {"checkpoint_every": 1}},
    "one more trial": {"method": "softad", "earlier": [{"changes": ONE}], "changes": TWO},
    "a shard beside another": {"method": "erm", "earlier": SHARDS[:1], **SHARDS[1]},
    "shards put together": {"method": "erm", "earlier": SHARDS, "changes": TWO},
}
"""What is called, after earlier calls that are not disturbed."""


@pytest.fixture(scope="module")
def outcomes():
    """Return (kills, numbers of the operations after which the study ended otherwise) by case."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # writes wait for no disk
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        command = [sys.executable, __file__, folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # minutes on a machine with other work
@pytest.mark.parametrize("case", CASES)
def test_killed_at_any_file_operation_the_same_call_ends_with_the_same_rows(outcomes, case):
    kills, different = outcomes[case]
    assert kills > 2
    assert not different


def run(case, kill_at=None):
    """Make a call in a child process, killed right before its `kill_at`-th operation; return its status."""
    from helpers.protocols import train

    child = os.fork()
    if not child:
        try:
            if kill_at is not None:
                kill_before(kill_at)
            train(protocol(case), case["method"], shard=case.get("shard", (1, 1)))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_before(operation):
    """Kill this process right before its n-th change of a file or folder below `outputs/`."""
    folder = os.path.join(os.environ["SOFTAD_HOME"], "outputs")
    count = 0

    def hook(event, args):
        nonlocal count
        if event in CHANGES and str(args[0]).startswith(folder) and CHANGES[event](*args):
            count += 1
            if count == operation:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = {
    "open": lambda path, mode, flags: flags & WRITING,
    "os.rename": lambda *args: True,
    "os.mkdir": lambda path, *args: (
        os.path.isdir(os.path.dirname(path)) and not os.path.exists(path)
    ),
    "os.remove": lambda path, *args: os.path.exists(path),
    "os.rmdir": lambda path, *args: os.path.isdir(path) and not os.listdir(path),
}
"""Audit event → whether it changes what is on the disk; some fail, or ask for what is there."""


def protocol(case):
    from helpers.protocols import tiny

    return tiny(**case.get("changes", {}))


def stored(case):
    """Describe all that is stored, numbers to the last bit."""
    from helpers.protocols import store_of
    from pyarrow.parquet import read_table

    store = store_of(protocol(case), case["method"])
    files = [path for path in store.folder.rglob("*") if path.is_file() and path.name[0] != "."]
    tables = {path: read_table(path) for path in files if path.suffix == ".parquet"}
    return {
        "files": sorted(files),
        "tables": {path: table.replace_schema_metadata() for path, table in tables.items()},
        "trained": sum(session.runs_trained for session in store.sessions()),
        "replayed": sum(session.runs_replayed for session in store.sessions()),
    }


def stored_numbers(case):
    """Return how many rows are stored, and how many with losses of single samples."""
    from helpers.protocols import store_of

    store = store_of(protocol(case), case["method"])
    rows = store.rows()
    return len(rows), int(rows["samples_train"].notna().sum()) if "samples_train" in rows else 0


def import_everything(folder):
    """Train every method once here: modules that a training imports late are not imported by each child."""
    from helpers.protocols import train
    from helpers.workspace import make_home

    os.environ["SOFTAD_HOME"] = str(make_home(folder))
    for case in CASES.values():
        train(protocol(case), case["method"])


def sweep(case, folder):
    """Kill a call at every operation; return how many there are, and which change the outcome.

    Those count too after which less is stored than after the one before.
    """
    from helpers.workspace import make_home

    home = make_home(folder)
    os.environ["SOFTAD_HOME"] = str(home)
    outputs, start = home / "outputs", home / "start"
    outputs.mkdir()
    for earlier in case.get("earlier", []):
        assert run({"method": case["method"], **earlier}) == 0
    shutil.copytree(outputs, start)
    assert run(case) == 0
    expected = stored(case)
    different = []
    before = (0, 0)
    for operation in itertools.count(1):
        shutil.rmtree(outputs)
        shutil.copytree(start, outputs)
        if run(case, kill_at=operation) == 0:
            return operation - 1, different
        now = stored_numbers(case)
        lost = any(new < old for new, old in zip(now, before))
        before = now
        if lost or run(case) != 0 or stored(case) != expected:
            different.append(operation)


if __name__ == "__main__":
    import torch
    from tqdm import tqdm

    torch.set_num_threads(1)
    tqdm.monitor_interval = 0  # no thread
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import_everything(Path(sys.argv[1]) / "imports")
    print(json.dumps({name: sweep(CASES[name], Path(sys.argv[1]) / name) for name in CASES}))
