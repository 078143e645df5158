"""`softad bench` on work too small to mean anything: that both sides do it, and what is written."""

import dataclasses
import json
import re

import pytest
import torch

from softadlib.training.engines import factory, mlp_cpu
from softadlib.training.engines.mlp_cpu import MLPEngine
from softadlib.training.engines.vmap import VmapEngine
from softadlib.training.trainer import Trainer
from softadlib.workbook import cli
from softadlib.workbook.bench import cases as bench_cases
from softadlib.workbook.bench import reference
from softadlib.workbook.bench import run as bench
from softadlib.workbook.bench.cases import CASES, Clock, Seconds, Side, cases, work_through
from softadlib.workbook.bench.lines import row_line

TINY = {"n_test": 40, "model": "linear"}


@pytest.fixture
def tiny(monkeypatch):
    """All cases on the linear model, two epochs, a study of 2 × 3 runs."""
    original = bench_cases.cases
    monkeypatch.setattr(bench, "STUDY", {"trials": 2, "values": 3, "epochs": 2})

    def small(names, device):
        found = []
        for case in original(names, device):
            image = case.protocol.dataset not in ("gaussian",)
            sizes = {"n_train": 60, "n_val": 20, "n_test": 20} if image else {"n_test": 40}
            changes = {"dataset": "digits", "batch_size": 50} if image else {}
            protocol = case.protocol.replace(**sizes, **changes, model="linear")
            epochs = min(case.epochs, 2)
            found.append(dataclasses.replace(case, protocol=protocol, epochs=epochs, note=""))
        return found

    monkeypatch.setattr(bench, "cases", small)
    return small


def test_every_case_gives_a_row_in_each_layout(tiny, tmp_path, capsys):
    file = tmp_path / "bench.json"
    assert cli.main(["bench", "--device", "cpu", "--rounds", "1", "--json", str(file)]) == 0
    table = json.loads(file.read_text())
    assert [(r["case"], r["layout"]) for r in table["rows"]] == [
        (case, layout) for case in CASES for layout in ("as-shipped", "same")
    ]
    assert {"device", "cores", "torch"} <= set(table["hardware"])
    assert set(table["peaks"]) == {"gflops", "gbps"}
    assert set(table["step_products"]) == {"mkl", "onednn"}
    for row in table["rows"]:
        assert row["ratio"] == pytest.approx(row["published_s"] / row["ours_s"])
        assert row["published_s"] > 0
        assert row["rounds"] == 1
        assert row["ratio_range"] == [row["ratio"]] * 2
        assert row["cpu_ratio"] == pytest.approx(row["published_cpu_s"] / row["ours_cpu_s"])
        assert row["cpu_ratio_range"] == [row["cpu_ratio"]] * 2
        assert 0 < row["core_share"] < 1.1
        studied = row["case"].startswith("study")
        assert studied == (row["share_of_peak"] is None)
        if not studied:
            assert 0 < row["share_of_peak"] < 1
    steps = {row["method"]: row for row in table["methods"]}
    assert steps["erm"]["over_erm"] == 1
    assert all(row["over_erm_range"] == [row["over_erm"]] * 2 for row in steps.values())
    assert {"softad", "sam", "fdgr"} < set(steps)
    assert all(row["step_s"] > 0 for row in steps.values())
    grown = table["growth"]
    assert {g["model"] for g in grown} == {"linear", "mlp4x500", "mlp1x1000"}
    assert len({(g["runs"], g["epochs"], g["model"]) for g in grown}) == len(grown)
    text = capsys.readouterr().out
    assert all(re.search(rf"^{case} +as-shipped .*\d\.\d\d ", text, re.M) for case in CASES)


def test_both_sides_do_the_same_work(tiny, monkeypatch):
    """Steps and measurements of one run, counted on both sides."""
    case = tiny(["study-all"], "cpu")[0]
    side, counts = Side(case), {"steps": 0, "measures": 0}

    def counting(name, original):
        def count(*args, **kwargs):
            counts[name] += 1
            return original(*args, **kwargs)

        return count

    monkeypatch.setattr(reference, "backward", counting("steps", reference.backward))
    monkeypatch.setattr(reference, "final_measures", counting("measures", reference.final_measures))
    run_jobs(side.published(case.runs(1), "all"))
    assert counts == {"steps": 2 * 2, "measures": 3}
    counts.update(steps=0, measures=0)
    monkeypatch.setattr(MLPEngine, "measure", counting("measures", MLPEngine.measure))
    monkeypatch.setattr(mlp_cpu, "backward", counting("steps", mlp_cpu.backward))
    run_jobs(side.ours(case.runs(1), "all"))
    assert counts == {"steps": 2 * 2, "measures": 3}


def run_jobs(jobs):
    for job in jobs:
        job(Clock(torch.device("cpu")))


def test_networks_and_engines_are_made_outside_of_what_is_timed(tiny, monkeypatch):
    """D15."""
    case = tiny(["train-erm"], "cpu")[0]
    side = Side(case)
    jobs = {who: getattr(side, who)(case.runs(2), "never") for who in ("ours", "published")}

    def refuse(*args):
        raise AssertionError("made while the clock runs")

    monkeypatch.setattr(Trainer, "network", refuse)
    monkeypatch.setattr(Trainer, "engine", refuse)
    for some in jobs.values():
        assert len(some) == 2
        run_jobs(some)


def test_on_an_accelerator_the_epoch_that_captures_is_not_timed(tiny, monkeypatch):
    """D15: the clock starts anew after it, and one epoch more is trained."""
    case = tiny(["train-erm"], "cpu")[0]
    side, events = Side(case), []
    (job,) = side.ours(case.runs(1), "never")
    job.keywords["engine"].train = lambda config, *rest, progress, **more: [
        (events.append("epoch"), progress(1)) for _ in range(config.epochs)
    ]
    clock = Clock(torch.device("cpu"))
    clock.start = lambda: events.append("start")
    job(clock)
    assert events == ["epoch"] * case.epochs, "on a CPU nothing is captured"
    events.clear()
    side.trainer.device = torch.device("mps")
    monkeypatch.setattr(Trainer, "lots", lambda self: [self.runs])
    (job,) = side.ours(case.runs(1), "never")
    job.keywords["engine"].train = lambda config, *rest, progress, **more: [
        (events.append("epoch"), progress(1)) for _ in range(config.epochs)
    ]
    job(clock)
    assert events == ["epoch", "start"] + ["epoch"] * case.epochs


def test_a_busy_machine_is_said(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.getloadavg", lambda: (1.9, 0, 0))
    assert bench.load_warning() == ""
    monkeypatch.setattr("os.getloadavg", lambda: (2.5, 0, 0))
    assert bench.load_warning().startswith("the load is 2.5 on 4 cores")


def test_the_cases_asked_for_run_alone_and_are_written_as_they_end(tiny, monkeypatch):
    saved, lines = [], []
    made = bench.Bench("cpu", 1, lines.append, lambda table: saved.append(len(table["rows"])))
    made.processes = 1
    table = made.table(["train-erm", "train-sam"])
    assert [row["case"] for row in table["rows"]] == ["train-erm"] * 2 + ["train-sam"] * 2
    assert table["growth"] == table["methods"] == []
    assert saved == [2, 4]
    assert sum("train-sam" in line for line in lines) == 2


def scripted(monkeypatch, seconds, **changes):
    """A bench whose calls take the seconds given, one after another, on a clock of its own."""
    now, left = [0.0], iter(seconds)

    def work(case, who, runs, evals, threads):
        wall = next(left) if case.epochs > 1 else 0.0  # one epoch prepares
        now[0] += wall
        return Seconds(wall or 1.0, 2 * wall or 1.0, changes.get("share", 1.0))

    monkeypatch.setattr(bench, "work_through", work)
    monkeypatch.setattr(bench.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(bench.peaks, "peak_gflops", lambda device: 100.0)
    made = bench.Bench("cpu", changes.get("rounds", 3))
    made.cores = made.processes = 1
    return made


def test_sides_take_turns_and_ratios_are_those_of_a_round(tiny, monkeypatch):
    case = tiny(["train-erm"], "cpu")[0]
    # published 2 runs, ours 8: a machine that grows slower changes no ratio
    made = scripted(monkeypatch, [2, 4, 4, 8, 8, 24])
    (row,) = made.rows(case, ["same"])
    assert (row["ratio"], row["ratio_range"]) == (2, [4 / 3, 2])
    assert (row["cpu_ratio"], row["cpu_ratio_range"]) == (2, [4 / 3, 2])
    assert (row["ours_s"], row["ours_cpu_s"]) == (1 / 4, 1 / 2), "8 s for 8 runs of 4 steps"
    assert "others used" not in row_line(row)


def test_both_layouts_of_the_published_loop_take_turns_with_one_timing_of_ours(tiny, monkeypatch):
    case = tiny(["train-erm"], "cpu")[0]
    made = scripted(monkeypatch, [6, 8, 2, 12, 8, 4], rounds=2)
    shipped, same = made.rows(case, bench.LAYOUTS)
    assert (shipped["layout"], same["layout"]) == ("as-shipped", "same")
    assert (shipped["ratio"], shipped["ratio_range"]) == (4.5, [3, 6]), "6/2, 12/2 over 8/8"
    assert (same["ratio"], same["ratio_range"]) == (1.5, [1, 2])
    assert shipped["ours_s"] == same["ours_s"] == 1 / 4


def test_no_round_is_begun_that_would_end_too_late(tiny, monkeypatch):
    case = tiny(["train-erm"], "cpu")[0]
    made = scripted(monkeypatch, [5] * 10, rounds=5)
    assert made.rows(case, ["same"])[0]["rounds"] == bench.ROW_BUDGET // 10
    made = scripted(monkeypatch, [5] * 10, rounds=5)
    made.deadline, made.rows_left = 45.0, 2
    assert made.rows(case, ["same"])[0]["rounds"] == 2, "half of what is left"
    made = scripted(monkeypatch, [500] * 2, rounds=5)
    assert made.rows(case, ["same"])[0]["rounds"] == 1


def test_the_published_loop_is_timed_on_fewer_epochs_of_a_study():
    case = cases(["study-all"], "cpu")[0]
    short, factor = case.shortened()
    assert (short.epochs, factor) == (4, 21 / 5), "measured before training and after each epoch"
    whole = cases(["train-erm"], "cpu")[0]
    assert whole.shortened() == (whole, 1)


def test_a_row_says_that_others_used_the_cores(tiny, monkeypatch):
    case = tiny(["train-erm"], "cpu")[0]
    (row,) = scripted(monkeypatch, [1] * 6, share=0.6).rows(case, ["same"])
    assert row["core_share"] == 0.6
    assert "(others used the cores: a process got 60% of one)" in row_line(row)


def test_replaying_trains_without_curves_and_then_one_run_a_trial_with_them(tiny, monkeypatch):
    calls = []

    def record(case, who, runs, evals, threads):
        calls.append((who, len(runs), evals, threads))
        return Seconds(2.0, 1.0)

    monkeypatch.setattr(bench, "work_through", record)
    made = bench.Bench("cpu", 1)
    made.cores = made.processes = 1
    case = tiny(["study-shown"], "cpu")[0]
    made._timed(case, "ours", 6, "as-shipped")
    made._timed(case, "published", 2, "as-shipped")
    assert calls == [("ours", 6, "end", 1), ("ours", 2, "all", 1), ("published", 2, "all", 1)]
    calls.clear()
    made.on_cpu = False
    made._timed(case, "ours", 6, "as-shipped")
    assert calls == [("ours", 6, "end", 1), ("ours", 6, "selected", 1)], "D3, D15: whole lots"


def test_a_replay_on_an_accelerator_measures_one_run_a_trial(tiny, monkeypatch):
    """D15: what `softad train` does there."""
    case, measured = tiny(["study-shown"], "cpu")[0], []
    monkeypatch.setattr(Trainer, "lots", lambda self: [self.runs])
    monkeypatch.setattr(factory, "ENGINES", [VmapEngine])
    original = VmapEngine.measure
    monkeypatch.setattr(
        VmapEngine, "measure", lambda self, runs: measured.append(len(runs)) or original(self, runs)
    )
    run_jobs(Side(case).ours(case.runs(6), "selected"))
    assert measured == [2] * (case.epochs + 1)


def test_noise_has_the_shape_of_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTAD_DATA", str(tmp_path))
    case = cases(["fashionmnist-epoch"], "cpu")[0]
    assert "not here" in case.note
    splits = bench_cases._data(case)
    assert splits.shape == (1, 28, 28)
    assert [getattr(splits, p).shape[1] for p in ("train", "val", "test")] == [48000, 12000, 10000]


def test_work_is_counted_by_hand():
    side = Side(dataclasses.replace(cases(["eval-20000"], "cpu")[0]))
    assert side.flops() == 2 * (2 * 500 + 3 * 500 * 500 + 500 * 2) * 20200
    side = Side(cases(["train-sam"], "cpu")[0])
    assert side.flops() == 3 * 2 * 2 * (2 * 500 + 3 * 500 * 500 + 500 * 2) * 50


def test_bad_calls_are_one_line(capsys, tmp_path):
    for arguments, line in (
        (["--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["--case", "train-emr"], "case 'train-emr'"),
        (["--device", "gpu"], "device 'gpu'"),
        (["--json", str(tmp_path / "file" / "x.json")], "is not a folder"),
    ):
        (tmp_path / "file").write_text("")
        assert cli.main(["bench", *arguments]) == 2
        error = capsys.readouterr().err
        assert line in error
        assert error.count("\n") == 1


def test_one_share_is_worked_through_with_the_threads_asked():
    case = dataclasses.replace(cases(["eval-20000"], "cpu")[0])
    case = dataclasses.replace(case, protocol=case.protocol.replace(**TINY))
    for who in ("published", "ours"):
        work_through(case, who, case.runs(1), "only", 1)
