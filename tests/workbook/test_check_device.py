"""`softad check-device`: what passes, what fails, and which device `auto` takes."""

import json

import pytest
import torch
from helpers.workspace import make_home

from softadlib.training import device as devices
from softadlib.training.device import is_checked, pick_device, remember_checked
from softadlib.training.engines.vmap import VmapEngine
from softadlib.workbook import check_device, cli

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    return make_home(tmp_path)


@pytest.fixture
def few(monkeypatch):
    """Three methods."""
    some = {name: check_device.METHODS[name] for name in ("erm", "softad", "sam")}
    monkeypatch.setattr(check_device, "METHODS", some)


def test_a_cpu_passes(few, tmp_path, capsys):
    file = tmp_path / "report.json"
    assert cli.main(["check-device", "--device", "cpu", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert report["passed"] is True
    names = [check["name"] for check in report["checks"]]
    assert sum("against the CPU" in name for name in names) == 3
    for part in ("bf16, 4 runs", "streams", "trained again", "resumed", "dropped engine"):
        assert any(part in name for name in names)
    text = capsys.readouterr().out
    assert text.count("pass  ") == len(names)
    assert text.endswith(": passed\n")


def test_a_device_that_computes_something_else_fails(few, monkeypatch, capsys):
    original = VmapEngine._gradient

    def wrong(self, *args):
        return {name: g * 1.001 for name, g in original(self, *args).items()}

    monkeypatch.setattr(VmapEngine, "_gradient", wrong)
    assert cli.main(["check-device", "--device", "cpu"]) == 1
    assert "FAIL  softad against the CPU" in capsys.readouterr().out


def test_a_device_that_raises_fails_and_the_other_sections_are_tried(few, monkeypatch):
    def broken(device):
        raise RuntimeError("no kernel image is available\nand more")

    broken.__name__ = "streams"
    monkeypatch.setattr(check_device, "streams", broken)
    report = check_device.check_device(CPU, 100)
    assert report["passed"] is False
    failed = [check for check in report["checks"] if check["passed"] is False]
    assert [check["value"] for check in failed] == ["RuntimeError: no kernel image is available"]
    assert any("resumed" in check["name"] for check in report["checks"])


def test_what_the_budget_leaves_out_has_not_passed(few):
    report = check_device.check_device(CPU, -1)
    assert report["passed"] is False
    assert {check["value"] for check in report["checks"]} == {"not begun after -1 s"}


def test_auto_takes_a_gpu_that_was_checked_with_this_torch(home, monkeypatch):
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices, "device_name", lambda device: "a card")
    with pytest.warns(UserWarning, match="softad check-device --device cuda"):
        assert pick_device("auto") == CPU
    assert pick_device("cuda") == cuda, "whoever names it gets it"
    remember_checked(cuda)
    assert pick_device("auto") == cuda
    monkeypatch.setattr(torch, "__version__", "0.0.1")
    assert not is_checked(cuda), "another torch has other kernels"
    devices._checked_file().write_text("{broken")
    assert not is_checked(cuda)


def test_a_budget_that_is_no_number_is_refused(capsys):
    assert cli.main(["check-device", "--device", "cpu", "--budget", "nan"]) == 2
    assert "--budget must be a number of at least 0, got nan" in capsys.readouterr().err
