"""Ray for real: two nodes of two workers each, one of which dies. One cluster for all tests."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import nbformat
import pandas as pd
import pytest
from helpers.workspace import (
    TINY,
    make_home,
    read_provenance,
    tree,
    without_progress,
    write_notebook,
)

from softadlib._validation import UserError
from softadlib.training import checkpoint, study
from softadlib.training.executors import ray as ray_executor
from softadlib.training.protocol import Protocol
from softadlib.workbook import cli

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:.*ray.*:FutureWarning")

GRIDS = {"softad": [0.05, 0.1, 0.3], "sam": [0.1], "adaflood": [0.1]}
DATASETS = {
    "gaussian": {"trials": 3, "grids": GRIDS, "settings": {"adaflood": {"aux_folds": 2}}},
    "spiral": {"grids": {"softad": "auto"}},
}
PAIRS = [("gaussian", m) for m in ("erm", *GRIDS)] + [("spiral", m) for m in ("erm", "softad")]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Connected to for all tests: the nodes' processes need not start anew."""
    from ray.cluster_utils import Cluster

    # ray imports jsonschema, which compiles this grammar for seconds in every process.
    modules = tmp_path_factory.mktemp("modules")
    (modules / "rfc3987_syntax.py").write_text("raise ImportError")
    path = os.pathsep.join([str(modules), *filter(None, [os.environ.get("PYTHONPATH")])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        for left in (2, 1, 0):  # a node has half a minute to start, however busy the machine is
            try:
                nodes = Cluster(True, head_node_args={"num_cpus": 2, "include_dashboard": False})
                nodes.add_node(num_cpus=2)
                break
            except Exception:
                if not left:
                    raise
        nodes.wait_for_nodes()
    with ray_executor.RayCluster(nodes.address):
        yield nodes.address
    nodes.shutdown()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A home where one process has done everything."""
    home = make_home(tmp_path_factory.mktemp("plain"), **DATASETS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTAD_HOME", str(home))
        assert cli.main(["train", "tiny", "-j", "1"]) == 0
    return home


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    return make_home(tmp_path, ("train", "tab1_3_loss_gaps"), **DATASETS)


def table(home, dataset, method):
    return pd.read_parquet(home / "outputs/tiny" / dataset / method / "metrics.parquet")


def same_tables(home, plain, pairs=PAIRS):
    for pair in pairs:
        pd.testing.assert_frame_equal(table(home, *pair), table(plain, *pair), check_exact=True)


def sessions(home, dataset, method):
    path = home / "outputs/tiny" / dataset / method / "provenance.json"
    return read_provenance(path)["sessions"]


def visible(folder):
    """Every file below a folder but lock files and logs."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.name[0] != ".")
    return {p.relative_to(folder).as_posix() for p in files}


def test_a_death_costs_its_task_once_more_and_two_its_study(
    home, plain, address, monkeypatch, capsys
):
    log, marker, cursed = home / "log", home / "marker", home / "cursed"

    class MortalTask(study.TrainTask):
        def run(self, context):
            run = self.runs[0]
            with open(log, "a") as file:
                keys = [r.key for r in self.runs]
                facts = [self.protocol.dataset, run.method, sorted(self.epochs), keys]
                file.write(json.dumps(facts) + "\n")
            if run.method == "sam" and run.trial == 0 and cursed.exists():
                os.kill(os.getpid(), signal.SIGKILL)
            if run.method == "softad" and run.trial == 1:
                with contextlib.suppress(FileExistsError):
                    marker.touch(exist_ok=False)
                    os.kill(os.getpid(), signal.SIGKILL)
            return super().run(context)

    def executions():
        lines = log.read_text().splitlines()
        log.unlink()
        return {line: lines.count(line) for line in lines}

    monkeypatch.setattr(study, "TrainTask", MortalTask)
    cursed.touch()
    argv = ["train", "tiny", "--engine", "ray", "--address", address]
    assert cli.main(argv) == 1
    lines = without_progress(capsys.readouterr().err.strip().splitlines())
    assert len(lines) == 1, lines
    assert "1 tasks were lost with their workers 2 times" in lines[0]
    times = executions()
    twice = [json.loads(task)[1] for task, n in times.items() if n == 2]
    assert sorted(twice) == ["sam", "softad"], "tried twice and given up; died once and done again"
    assert sum(n == 1 for n in times.values()) == len(times) - len(twice) > 9
    same_tables(home, plain, [p for p in PAIRS if p[1] != "sam"])
    assert not (home / "outputs/tiny/gaussian/sam/metrics.parquet").exists()

    cursed.unlink()
    assert cli.main(argv) == 0
    assert {json.loads(task)[1] for task in executions()} == {"sam"}
    same_tables(home, plain)
    facts = [s for pair in PAIRS for s in sessions(home, *pair)]
    assert {s["engine"] for s in facts} == {"ray"}
    assert max(s["nodes"] for s in facts) == 2
    assert {s["device"] for s in facts} == {sessions(plain, *PAIRS[0])[0]["device"]}
    folder = home / "outputs/tiny"
    files = visible(folder)
    prepared = {f for f in files if "/held-out/" in f or "/suggested/" in f}
    assert len(prepared) == 3 + 2, "held-out losses and suggestions came back too"
    names = ("metrics.parquet", "provenance.json", "selected.parquet")
    assert files - prepared == {"/".join([*p, n]) for p in PAIRS for n in names}


LONG = {"epochs": 60, "checkpoint_every": 1, "grids": {"softad": [0.1]}, "trials": 1}


def epochs_resumed(home, dataset="gaussian", method="softad"):
    return [s.get("epochs_resumed", 0) for s in sessions(home, dataset, method)]


def long_home(folder):
    for name in ("params", "notebooks"):
        shutil.rmtree(folder / name)
    make_home(folder, gaussian=LONG)


def tiny(**changes):
    """The same protocol for a run in this process."""
    facts = {"profile": "plain", "dataset": "gaussian", "device": "cpu"}
    return Protocol.from_dict({**facts, **TINY, **LONG, **changes})


def same_as_plain(home):
    ours, theirs = (
        home / f"outputs/{p}/gaussian/softad/metrics.parquet" for p in ("tiny", "plain")
    )
    pd.testing.assert_frame_equal(pd.read_parquet(ours), pd.read_parquet(theirs), check_exact=True)


@pytest.mark.parametrize("with_checkpoints", [True, False])
def test_a_task_whose_worker_dies_resumes_where_nodes_share_a_folder(
    home, address, monkeypatch, capsys, with_checkpoints
):
    log, marker, checkpoints = home / "log", home / "marker", home / "shared"

    class MortalTask(study.TrainTask):
        def run(self, context):
            epochs = 0

            def progress(units):
                nonlocal epochs
                epochs += units
                with open(log, "a") as file:
                    file.write(f"{units}\n")
                if epochs == 40 and not marker.exists():
                    marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)

            return super().run(dataclasses.replace(context, progress=progress))

    study.run(tiny(), "softad")
    long_home(home)
    monkeypatch.setattr(study, "TrainTask", MortalTask)
    argv = ["train", "tiny", "--method", "softad", "--engine", "ray", "--address", address]
    argv += ["--checkpoint-dir", str(checkpoints)] if with_checkpoints else []
    assert cli.main(argv) == 0, capsys.readouterr().err
    units = [int(n) for n in log.read_text().split()]
    again = [39] + [1] * 21 if with_checkpoints else [1] * 60
    assert units == [1] * 40 + again, "the fortieth epoch was not saved yet"
    same_as_plain(home)
    assert epochs_resumed(home) == [39 if with_checkpoints else 0]
    assert visible(home / "outputs/tiny/gaussian/softad") == {
        "metrics.parquet",
        "provenance.json",
        "selected.parquet",
    }
    assert not visible(checkpoints)


def saved_epoch(checkpoints):
    """The epoch of the only checkpoint; 0 without."""
    states = (checkpoint.deserialize(path.read_bytes()) for path in checkpoints.rglob("*.pt"))
    return max((state["epoch"] for state in states), default=0)


STOPPABLE = """
import dataclasses, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run behind a shell
from softadlib.training import study
from softadlib.workbook import cli

class EndlessTask(study.TrainTask):
    def run(self, context):
        epochs = 0
        def progress(units):
            nonlocal epochs
            epochs += units
            while epochs >= 40:
                time.sleep(0.1)
        return super().run(dataclasses.replace(context, progress=progress))

study.TrainTask = EndlessTask
sys.exit(cli.main(sys.argv[1:]))
"""


def command(home, *argv):
    """Start `softad` in a process of its own, whose tasks never end."""
    with open(home / "stderr", "w") as stderr:
        return subprocess.Popen(
            [sys.executable, "-c", STOPPABLE, *argv],
            env={**os.environ, "SOFTAD_HOME": str(home)},
            stdout=stderr, stderr=stderr,
        )  # fmt: skip


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_caller_that_ends_leaves_no_task_and_the_next_one_resumes(home, address, number, status):
    import ray

    long_home(home)
    checkpoints = home / "shared"
    argv = ["train", "tiny", "--method", "softad", "--engine", "ray", "--address", address]
    argv += ["--checkpoint-dir", str(checkpoints)]
    with command(home, *argv) as process:
        while saved_epoch(checkpoints) < 39:
            assert process.poll() is None, (home / "stderr").read_text()
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(60) == status
    if status > 0:
        lines = (home / "stderr").read_text().splitlines()
        assert without_progress(lines) == ["softad: stopped; the same command resumes"]
    until = time.monotonic() + 60
    while ray.available_resources().get("CPU") != 4:
        assert time.monotonic() < until, "a task runs on without its caller"
        time.sleep(0.1)
    assert cli.main(argv) == 0
    assert epochs_resumed(home) == [39]
    study.run(tiny(), "softad")
    same_as_plain(home)


def test_nodes_train_and_the_caller_executes_the_notebooks(
    home, plain, address, monkeypatch, capsys
):
    monkeypatch.setenv("CALLER", "the caller")  # the nodes' processes do not have it
    broken = home / "notebooks" / "broken.ipynb"
    write_notebook(broken, "import os", "raise ValueError(os.environ['CALLER'])")
    argv = ["run", "tiny", "--dataset", "spiral", "--method", "erm"]
    assert cli.main([*argv, "--engine", "ray", "--address", address]) == 1
    err = capsys.readouterr().err
    assert "broken failed in notebooks/broken.ipynb In [4]: ValueError: the caller" in err
    folder = home / "outputs/tiny"
    assert f"the notebook as it stopped: {folder}/figures/broken.error.ipynb" in err
    assert visible(folder) == {
        *(
            f"spiral/erm/{n}"
            for n in ("metrics.parquet", "provenance.json", "selected.parquet", "train.ipynb")
        ),
        "figures/tab1_3_loss_gaps.ipynb",
        "figures/broken.error.ipynb",
    }
    assert [s["engine"] for s in sessions(home, "spiral", "erm")] == ["ray"]
    same_tables(home, plain, [("spiral", "erm")])
    notebook = nbformat.read(folder / "spiral/erm/train.ipynb", as_version=4)
    assert all(c.execution_count for c in notebook.cells if c.cell_type == "code")
    broken.unlink()
    before = {name: (folder / name).stat().st_mtime_ns for name in visible(folder)}
    assert cli.main([*argv, "-j", "1"]) == 0
    assert "2 of 2 notebooks are already done" in capsys.readouterr().err
    assert {name: (folder / name).stat().st_mtime_ns for name in visible(folder)} == before


def test_errors_of_nodes_and_of_the_cluster_are_one_line(home, address, capsys):
    def refused(*argv):
        assert cli.main(["train", "tiny", "--engine", "ray", "--address", address, *argv]) in (1, 2)
        (line,) = without_progress(capsys.readouterr().err.strip().splitlines())
        return line

    # three folds of 20 samples leave 13 or 14 to train on, and a batch of one: a node says so
    argv = ("--method", "adaflood", "--dataset", "gaussian")
    argv += ("-p", "settings", "{adaflood: {aux_folds: 3}}")
    assert "with aux_folds 3, batch_size 13 leaves a last batch of one" in refused(
        *argv, "-p", "batch_size", "13"
    )
    assert "no node of the cluster has 64 CPUs and 0 GPUs" in refused("--cpus", "64")
    assert "device 'cuda' needs --gpus above 0" in refused("-p", "device", "cuda")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--engine", "dask"], "engine 'dask' unknown; choose from joblib, ray"),
        (["--address", "auto"], "--address is for a cluster; add --engine ray"),
        (["--gpus", "0.5"], "--gpus is for a cluster; add --engine ray"),
        (["--checkpoint-dir", "shared"], "--checkpoint-dir is for a cluster; add --engine ray"),
        (["--engine", "ray", "--gpus", "-1"], "--gpus must be a number of at least 0, got -1"),
        (["--engine", "ray", "--gpus", "1.5"], "--gpus above 1 must be whole, got 1.5"),
        (["--engine", "ray", "--cpus", "nan"], "--cpus must be a number of at least 0, got nan"),
        (
            ["--engine", "ray", "--checkpoint-dir", "/dev/null/shared"],
            "/dev/null/shared cannot be written: /dev/null is not a folder",
        ),
        (["--engine", "ray", "-j", "2"], "--jobs is for this machine"),
    ],
)
@pytest.mark.parametrize("command", ["train", "run"])
def test_bad_options_are_one_line_and_start_nothing(home, capsys, command, argv, words):
    one_line_and_nothing(home, capsys, [command, "tiny", *argv], words)


def test_an_address_where_nothing_listens_is_refused_at_once(home, capsys, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    argv = ["train", "tiny", "--engine", "ray", "--address", "127.0.0.1:1"]
    one_line_and_nothing(home, capsys, argv, "no Ray cluster at 127.0.0.1:1: ")


def test_a_part_is_not_for_a_cluster(home, capsys):
    argv = ["train", "tiny", "--engine", "ray", "--shard", "1/2"]
    one_line_and_nothing(home, capsys, argv, "not with --engine ray")


def one_line_and_nothing(home, capsys, argv, words):
    before = tree(home)
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert words in err
    assert tree(home) == before


def test_without_ray_one_line_says_what_to_install(home, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.main(["train", "tiny", "--engine", "ray"]) == 2
    assert "ray is not installed; install it with: pip install 'softadlib[workbook,cluster]'" in (
        capsys.readouterr().err
    )


def test_workers_by_hand():
    cluster = ray_executor.RayCluster(cpus=2, gpus=0.25)
    cluster.nodes = [{"CPU": 16.0, "GPU": 1.0}, {"CPU": 5.0}, {"CPU": 3.0, "GPU": 8.0}]
    assert cluster.workers(0.25) == min(8, 4) + 0 + min(1, 32)
    assert cluster.workers(0) == 8 + 2 + 1
    assert ray_executor.RayExecutor(cluster, "auto").device.type == "cuda", "where nodes have GPUs"
    assert ray_executor.RayExecutor(cluster, "cpu").workers == 11
    with pytest.raises(UserError, match="no node of the cluster has 2 CPUs and 9 GPUs"):
        cluster.workers(9)
    with pytest.raises(UserError, match="device 'mps' is not for a cluster"):
        ray_executor.RayExecutor(cluster, "mps")
