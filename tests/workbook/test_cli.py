"""Bad input is one line that names value and choices, exit status 2, and nothing is written."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers.workspace import TINY, make_home, tree

from softadlib.data import synthetic
from softadlib.results import reader as store
from softadlib.workbook import cli, cli_options


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    return make_home(tmp_path, ("train", "tab1_3_loss_gaps"))


def refused(capsys, *argv):
    """The one line that `softad ARGV` says before it gives up."""
    assert cli.main([str(a) for a in argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("softad: ")
    return lines[0]


BAD = [
    (("nosuch",), "profile 'nosuch' unknown; choose from tiny"),
    (("tiny", "--dataset", "moons"), "dataset 'moons' unknown; choose from gaussian"),
    (("tiny", "--method", "ishida"), "'ishida' unknown; choose from erm, sam, softad"),
    (("tiny", "--method", "flooding"), "'flooding' unknown; choose from erm, sam, softad"),
    (
        ("tiny", "-p", "epoch", "3"),
        "parameter 'epoch' unknown; choose from folder, model, optimizer",
    ),
    (("tiny", "--dataset", ""), "--dataset and --method need a name; leave them out for all"),
    (("tiny", "--method", ","), "--dataset and --method need a name; leave them out for all"),
    (
        ("tiny", "-p", "epochs", "many"),
        "epochs must be a whole number of at least 1 and at most 1,000,000, got 'many'",
    ),
    (
        ("tiny", "-p", "settings.softad.sigma", "0"),
        "sigma must be a number of at least 1e-12, got 0",
    ),
    (
        ("tiny", "-p", "settings.softad.sigma", ".nan"),
        "sigma must be a number of at least 1e-12, got nan",
    ),
    (
        ("tiny", "-p", "sigma", "2"),
        "parameter 'sigma' belongs to a method; write settings: {softad: {sigma: 2}}, on the command "
        "line -p settings.softad.sigma 2",
    ),
    (
        ("tiny", "-p", "settings.softad.sgima", "2"),
        "setting of softad 'sgima' unknown; choose from",
    ),
    (("tiny", "-p", "settings.erm.sigma", "2"), "method in settings 'erm' unknown; choose from"),
    (("tiny", "-p", "epochs.softad", "2"), "epochs.softad cannot be set: epochs is 4, no mapping"),
    (
        ("tiny", "-p", "label_noise", "1.5"),
        "label_noise must be a number of at least 0 and at most 1, got 1.5",
    ),
    (("tiny", "-p", "grids", "{softad: []}"), "grids.softad is empty"),
    (
        ("tiny", "-p", "grids", "{softad: [-0.1]}"),
        "theta in grids.softad must be a number of at least 0, got -0.1",
    ),
    (
        ("tiny", "-p", "grids", "{sam: [a]}"),
        "radius in grids.sam must be a number of at least 0, got 'a'",
    ),
    (("tiny", "-p", "grids", "{sam: ["), "parameter grids: '{sam: [' is not YAML"),
    (
        ("tiny", "-p", "device", "cuda"),
        "device 'cuda' is not available here; choose from auto, cpu",
    ),
    (("tiny", "--jobs", "0"), "--jobs must be a whole number of at least 1, got 0"),
    (("tiny", "--as", "mine", "--jobs", "0"), "--jobs must be a whole number of at least 1, got 0"),
    (("tiny", "--as", "mine", "-p", "model", "resnet18"), "takes images of 3 channels"),
    (("tiny", "--as", "bench"), "has other contents; choose another name"),
    (("tiny", "-p", "epochs", "010"), "at most 1,000,000, got '010'"),
    (("tiny", "-p", "grids.softda", "null"), "'softda' unknown; choose from"),
]


@pytest.mark.parametrize("command", ["run", "train"])
@pytest.mark.parametrize(
    ("argv", "words"), BAD, ids=lambda v: " ".join(v) if isinstance(v, tuple) else ""
)
def test_bad_arguments(capsys, home, command, argv, words):
    if "cuda" in argv and __import__("torch").cuda.is_available():
        pytest.skip("this machine has what the test misses")
    before = tree(home)
    assert words in refused(capsys, command, *argv)
    assert tree(home) == before


@pytest.mark.parametrize("command", ["run", "train"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epochs: [1, 2", "broken YAML"),
        ("epochs: 3\nteh: 4", "parameter 'teh' unknown"),
        ("grids: {softad: [.nan]}", "theta in grids.softad"),
        ("settings: {softad: {sigma: -1}}", "sigma must be a number of at least 1e-12, got -1"),
        ("sigma: 2", "write settings: {softad: {sigma: 2}}"),
        ("label_noise: []", "label_noise must be"),
    ],
)
def test_a_bad_file_is_named(capsys, home, command, text, words):
    path = home / "params" / "tiny" / "gaussian.yaml"
    path.write_text(text)
    before = tree(home)
    line = refused(capsys, command, "tiny")
    assert words in line
    assert str(path) in line
    assert tree(home) == before


@pytest.mark.parametrize("command", ["run", "train", "report"])
def test_outputs_that_cannot_be_written(capsys, home, command):
    (home / "outputs").write_text("in the way")
    before = tree(home)
    line = refused(capsys, command, "tiny")
    assert "outputs" in line
    assert tree(home) == before


@pytest.mark.parametrize("command", ["run", "train"])
def test_a_table_cut_in_half_is_named_with_what_to_do(capsys, home, command):
    assert cli.main(["train", "tiny", "-j", "1"]) == 0
    capsys.readouterr()
    path = home / "outputs/tiny/gaussian/softad/metrics.parquet"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    before = tree(home)
    line = refused(capsys, command, "tiny")
    assert f"{path} is broken" in line
    again = "softad train tiny --dataset gaussian --method softad"
    assert f"delete {path.parent} and train it again: {again}" in line
    assert tree(home) == before


@pytest.mark.parametrize("command", ["run", "train"])
def test_nan_in_the_data(capsys, home, command, monkeypatch):
    def broken(n, label_noise, rng):
        x, y = synthetic.sinusoid(n, label_noise, rng)
        x[3, 1] = np.nan
        return x, y

    monkeypatch.setitem(synthetic.SYNTHETIC, "gaussian", broken)
    before = tree(home)
    assert "the data hold NaN or infinity in 3 of 80 samples, first at sample 3" in refused(
        capsys, command, "tiny"
    )
    assert tree(home) == before


def test_a_parameter_file_for_a_notebook_that_is_not_there(capsys, home):
    folder = home / "params" / "tiny" / "figures"
    folder.mkdir()
    (folder / "nosuch.yaml").write_text("a: 1")
    assert "notebook (named by" in refused(capsys, "run", "tiny")
    (folder / "nosuch.yaml").unlink()
    (folder / "tab1_3_loss_gaps.yaml").write_text("profil: x")
    assert "parameter in" in refused(capsys, "run", "tiny")
    assert not (home / "outputs").exists()


def test_report_without_results_says_what_to_run(capsys, home):
    assert "first: softad run tiny" in refused(capsys, "report", "tiny")
    assert "profile 'nosuch' unknown" in refused(capsys, "report", "nosuch")


def test_show_describes_the_parameters_of_its_methods(capsys, home):
    """Names, values and defaults as the profile and the protocol have them."""
    assert cli.main(["show", "tiny", "--method", "softad"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert lines["epochs"].split()[1:3] == ["4", "500"], "in tiny, and by default"
    assert "a whole number of at least 1" in lines["epochs"]
    assert "a number of at least 1e-12" in lines["settings.softad.sigma"]
    assert "grids.softad" in lines
    assert "grids.sam" not in lines
    assert "settings.sam.bn_update" not in lines


def test_a_note_says_what_becomes_of_results_with_other_parameters(capsys, home):
    assert cli.main(["train", "tiny", "--method", "softad", "-j", "1"]) == 0
    for epochs, words in (("3", "stored of gaussian × softad;"), ("4", "they are taken back")):
        capsys.readouterr()
        argv = ["train", "tiny", "--method", "softad", "-j", "1", "-p", "epochs", epochs]
        assert cli.main(argv) == 0
        assert words in capsys.readouterr().err


def test_a_note_that_several_datasets_share_is_said_once(capsys, home):
    grids = {"softad": [0.1, 0.8]}
    for name in ("gaussian", "sinusoid"):
        values = {**TINY, "profile": "tiny", "dataset": name, "grids": grids}
        (home / "params" / "tiny" / f"{name}.yaml").write_text(json.dumps(values))
    assert cli.main(["show", "tiny"]) == 0
    (note,) = [line for line in capsys.readouterr().err.splitlines() if "ln 2" in line]
    assert note.startswith(
        "softad: note: gaussian, sinusoid: values of theta at or above ln 2 = 0.6931: 1 of 2 of softad"
    )


NEW = [
    (("export", "tiny", "--to", "wandb"), "'wandb' unknown; choose from mlflow"),
    (("report", "tiny", "--format", "pdf"), "'pdf' unknown; choose from html, md, csv"),
    (("report", "tiny", "--output", "x"), "--output is for --format md and csv"),
    (("report", "tiny", "--format", "md"), "tiny"),
    (("run", "figures", "--method", "erm"), "leave --method out"),
    (("run", "figures", "--as", "mine"), "leave --as out"),
    (("run", "figures", "--engine", "ray"), "leave --engine out"),
    (("run", "figures", "--cpus", "2"), "--cpus is for a cluster"),
    (("report", "nosuch", "--format", "md"), "profile 'nosuch' unknown; choose from tiny"),
    (("check-device", "--json", "."), "--json '.' is a folder; name a file"),
    (("bench", "--json", "."), "--json '.' is a folder; name a file"),
    (("data", "prepare", "digits"), "digits needs no preparation"),
    (("data", "prepare", "pets"), "for images of your own add --from-folder DIR"),
    (("show", "nosuch"), "profile 'nosuch' unknown; choose from tiny"),
    (("show", "tiny", "--method", "ishida"), "'ishida' unknown; choose from erm, sam, softad"),
    (("slurm", "tiny", "--shards", "0"), "--shards must be a number of jobs from 1 to 10000"),
    (("train", "tiny", "--as", "../x"), "use a plain name"),
    (("train", "tiny", "--dataset", "gaussian,moons"), "dataset 'moons' unknown"),
    (
        ("slurm", "tiny", "--shards", "2", "-j", "0"),
        "--jobs must be a whole number of at least 1, got 0",
    ),
]


@pytest.mark.parametrize(
    ("argv", "words"), NEW, ids=lambda v: " ".join(v) if isinstance(v, tuple) else ""
)
def test_bad_input_of_other_commands(capsys, home, argv, words):
    before = tree(home)
    assert words in refused(capsys, *argv)
    assert tree(home) == before


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["run", "--help"]])
def test_help_does_not_wait_for_torch(argv):
    code = (
        "import sys, time\nfrom softadlib.workbook import cli\n"
        f"try: cli.main({argv})\nexcept SystemExit: pass\n"
        "heavy = [m for m in ('torch', 'numpy', 'pandas') if m in sys.modules]\n"
        "print(heavy, time.process_time(), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    heavy, seconds = done.stderr.splitlines()[-1].rsplit(" ", 1)
    assert heavy == "[]"
    assert float(seconds) < 0.5


def test_a_terminal_without_greek_letters(home):
    """As Windows has them: θ is in the table of parameters."""
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252", "SOFTAD_HOME": str(home)}
    command = [sys.executable, "-m", "softadlib", "show", "tiny"]
    done = subprocess.run(command, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr.decode("cp1252")
    assert "epochs" in done.stdout.decode("cp1252")


def test_outside_a_workbook(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path / "elsewhere"))
    assert "SOFTAD_HOME" in refused(capsys, "run", "tiny")
    assert "SOFTAD_HOME" in refused(capsys, "show")


def test_train_writes_the_contracts_files(home):
    assert cli.main(["train", "tiny", "--method", "softad", "--method", "erm", "-j", "1"]) == 0
    folder = home / "outputs/tiny/gaussian"
    assert sorted(p.name for p in folder.iterdir() if p.is_dir()) == ["erm", "softad"]
    assert sorted(p.name for p in (folder / "erm").iterdir()) == [
        "metrics.parquet",
        "provenance.json",
        "selected.parquet",
    ]
    assert json.loads((folder / "erm" / "provenance.json").read_text())["profile"] == "tiny"


def test_overrides_reach_the_runs(home):
    assert (
        cli.main(
            [
                "train",
                "tiny",
                "--method",
                "erm",
                "-p",
                "epochs",
                "2",
                "-p",
                "label_noise",
                "[0.1]",
                "-j",
                "1",
            ]
        )
        == 0
    )
    rows = store.read("tiny")
    assert rows["epoch"].max() == 2
    assert rows["label_noise"].unique().tolist() == [0.1]


def test_a_cliff_in_the_grid_is_said_and_not_fatal(capsys):
    grids = "{softad: [0.1, 0.7], iflood: [0.8]}"
    argv = ["train", "tiny", "--method", "softad", "-p", "grids", grids, "-j", "1"]
    assert cli.main(argv) == 0
    err = capsys.readouterr().err
    assert "values of theta at or above ln 2 = 0.6931: 1 of 2 of softad; there" in err
    assert "iflood" not in err, "it was not asked for"


def test_a_reader_that_closes_ends_the_command_without_a_word():
    """As `softad data list | head -0` does."""
    command = [sys.executable, "-m", "softadlib", "data", "list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_the_command_is_installed_and_has_help():
    for argv in (["--help"], ["run", "--help"], ["--version"]):
        done = subprocess.run(
            [sys.executable, "-m", "softadlib.workbook.cli", *argv], capture_output=True, text=True
        )
        assert done.returncode == 0
        assert done.stdout
    done = subprocess.run(
        [sys.executable, "-m", "softadlib.workbook.cli", "fly"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_importing_the_library_pulls_torch_and_numpy_only():
    others = ("pandas", "yaml", "scipy", "matplotlib", "papermill", "torchvision", "joblib")
    code = (
        "import sys, softadlib, softadlib.models, softadlib.training.engines.factory; "
        f"print([m for m in {others} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux alone tells")
def test_jobs_by_default_are_the_cores_that_the_process_may_use():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert cli_options.local_jobs(None) == 1
    finally:
        os.sched_setaffinity(0, before)
    assert cli_options.local_jobs(None) == len(before)
    assert cli_options.local_jobs(7) == 7
