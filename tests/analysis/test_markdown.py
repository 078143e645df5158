"""Results as Markdown say what is stored and nothing else."""

import math
import re
from pathlib import Path

import pandas as pd
import pytest

from softadlib._validation import UserError
from softadlib.analysis import coverage, overview, tables
from softadlib.analysis import markdown as results
from softadlib.experiments.audit import page as audit_page
from softadlib.results import reader as store
from softadlib.results.schema import COLUMNS
from softadlib.training import profiles
from softadlib.workbook import cli

ROOT = Path(__file__).parents[2]
BLOCKS = {"results": results.markdown}


def rows(gap: float, theta: float, trial: int, method: str = "softad") -> dict:
    numbers = [0.1, 0.2, 0.1 + gap, 0.9, 0.8, 0.75, 12.34]
    return dict(zip(COLUMNS, ["gaussian", method, trial, theta, 5, *numbers])) | {
        "label_noise": 0.0
    }


def text(table: pd.DataFrame) -> pd.DataFrame:
    return tables.render(table, results.CELLS)


def test_gaps_by_hand():
    table = results.gaps(pd.DataFrame([rows(0.2, 0.1, 0), rows(0.4, 0.1, 1)]), "largest")
    assert table["gap"].tolist() == pytest.approx([0.3]), "numbers, not text"
    line = text(table).iloc[0]
    # t(.975, 1) = 12.706, s/√2 = .1: .3 ± 1.271; the paper's Table 1 has .004
    assert line["paper's gap"] == "0.004"
    assert line["gap [95 %]"] == "0.300 [-0.971, 1.571]"
    assert (line["test loss"], line["test accuracy, %"]) == ("0.400", "75.0")
    assert (line["norm"], line["n"]) == ("12.3", "2")


def test_ties_and_selected_values_by_hand():
    both = pd.DataFrame([rows(0.2, 0.1, 0), rows(0.4, 0.5, 0)])
    line = text(results.knobs(both)).iloc[0]
    assert (line["ties to the largest"], line["ties to the smallest"]) == ("0.50", "0.10")
    assert line["at an end (largest)"] == line["at an end (smallest)"] == "1"
    assert (line["tied"], line["paper"]) == ("2.0", "0.08 (0.08)")
    both["loss_val"] = [0.4, 0.3]
    assert text(results.knobs(both)).iloc[0]["by validation loss"] == "0.50"
    assert text(results.gaps(both, "largest")).iloc[0]["gap [95 %]"] == "0.400"
    assert text(results.gaps(both, "smallest")).iloc[0]["gap [95 %]"] == "0.200"


def test_along_theta_by_hand():
    grid = (0.01, 0.09, 0.12, 0.33, 0.68, 0.7, 2.0)
    table = results.grid_profile(pd.DataFrame([rows(v, v, t) for v in grid for t in (0, 1)]))
    assert table["theta"].tolist() == [0.01, 0.09, 0.33, 0.68, 0.70, 2.00]
    assert table["gap"].tolist() == pytest.approx([0.010, 0.090, 0.330, 0.680, 0.700, 2.000])
    assert set(table["n"]) == {2}
    below = results.grid_profile(pd.DataFrame([rows(0.2, 0.3, 0)]))
    assert below["theta"].tolist() == [0.30], "a grid without a value above ln 2"


def test_what_has_nothing_to_choose_stands_under_one_rule():
    erm = pd.DataFrame([rows(0.2, math.nan, 0, "erm"), rows(0.2, math.nan, 1, "erm")])
    assert results.gaps(erm, "largest")["method"].tolist() == ["erm"]
    assert results.gaps(erm, "smallest").empty


def test_nothing_is_the_papers_protocol_that_is_not():
    made = store.provenances("smoke")
    cut = coverage.shortfalls(made)
    assert cut["digits"] == "not in the paper"
    assert "2 of 15 trials" in cut["gaussian"]
    assert "20 of 500 epochs" in cut["gaussian"]
    text = results.markdown("smoke")
    # 5 + 4 gaps, 4 values, 2 verdicts, 2 orders, 3 along θ
    assert text.count(f"| gaussian ({cut['gaussian']}) |") == text.count("| gaussian (") == 20


def made(method: str, grid: int) -> dict:
    span = store.grid_words(profiles.load("paper", "fashionmnist").grids.get(method, [0]))
    return {
        "dataset": "fashionmnist", "trials": 5, "grid": grid, "epochs": 500, "span": span,
        "samples": "all + all + all", "dtype": "float32", "method": method, "word": "",
        "training": training("fashionmnist", method),
    }  # fmt: skip


def training(dataset: str, method: str) -> str:
    """What the paper trains a method with."""
    return store.training_words(profiles.load("paper", dataset).model_dump(), method)


def test_other_training_than_the_papers_is_named():
    frame = pd.DataFrame([made("erm", 1), made("softad", 10)])
    frame["training"] = frame["training"].str.replace("lr 0.1", "lr 0.01")
    assert coverage.shortfalls(frame)["fashionmnist"] == "lr 0.01"
    frame.loc[1, "training"] = frame.loc[1, "training"].replace("sigma 1", "sigma 2")
    assert coverage.shortfalls(frame)["fashionmnist"] == "lr 0.01, sigma 2 of SoftAD"


def test_grids_that_are_shorter_than_the_papers():
    whole = {"erm": 1, "flooding": 10, "sam": 6}
    frame = pd.DataFrame([made(m, n) for m, n in whole.items()])
    # erm sweeps nothing and adaflood is not in the paper
    assert coverage.shortfalls(frame)["fashionmnist"] == ""
    more = pd.DataFrame([made("softad", 1), made("adaflood", 2), made("sam", 5)])
    words = "1 of 10 values of SoftAD, 5 of 6 values of SAM"
    assert coverage.shortfalls(more)["fashionmnist"] == words
    frame.loc[1, ["trials", "epochs"]] = 3, 40
    assert coverage.shortfalls(frame)["fashionmnist"] == "3–5 of 5 trials, 40–500 of 500 epochs"
    frame.loc[1, ["trials", "epochs", "span"]] = 5, 500, "0.2 to 3"
    assert coverage.shortfalls(frame)["fashionmnist"] == "values 0.2 to 3 of Flooding"
    more.loc[0, "word"] = "auto"
    assert coverage.shortfalls(more)["fashionmnist"] == "5 of 6 values per method"


def test_the_overview_of_a_theta_found_without_a_grid_has_no_smallest_theta():
    table, sentences = overview.overview("beyond").split("\n\n")
    assert "SoftAD, selected θ" in table
    assert "SoftAD, smallest θ" not in table
    assert "smallest θ" not in sentences
    assert "lowest at θ" not in sentences


def test_a_value_found_without_a_grid_says_so_and_has_no_cell_of_the_paper_beside_it():
    frames = results.frames("choosing-auto")
    lines = frames["Loss gaps (Tables 1 and 3), ties to the largest"]
    assert set(lines["method"]) == {"SoftAD, theta: auto"}
    assert lines["paper_gap"].isna().all()
    assert frames["Selected values (Tables 2 and 4)"]["paper_knob"].isna().all()
    assert "Who has the smallest gap" not in frames


def test_where_there_is_no_profile_paper_nothing_is_called_so(tmp_path, monkeypatch):
    (tmp_path / "params").mkdir()
    made = store.provenances("smoke")
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    cut = coverage.shortfalls(made)
    assert set(cut.values()) == {"no profile paper to hold it against"}


def test_the_paper_itself_is_called_so():
    facts = {
        "dataset": "gaussian", "trials": 15, "grid": 40, "epochs": 500,
        "samples": "100 + 100 + 20000", "dtype": "float32", "method": "softad",
        "word": "", "span": "0.01 to 2", "training": training("gaussian", "softad"),
    }  # fmt: skip
    assert coverage.shortfalls(pd.DataFrame([facts])) == {"gaussian": ""}


def test_written_between_its_marks_and_nowhere_else(tmp_path):
    page = tmp_path / "PAGE.md"
    marks = (
        results.BEGIN.format(what="results", profile="smoke", file="PAGE.md"),
        results.END.format(what="results", profile="smoke"),
    )
    page.write_text(f"before\n{marks[0]}\nold\n{marks[1]}\nafter\n")
    assert results.write("smoke", page, BLOCKS)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "\nold\n" not in text
    assert results.markdown("smoke") in text
    assert not results.write("smoke", page, BLOCKS)


def test_flipped_labels_are_named_and_have_no_column_of_the_paper():
    frames = results.frames("choosing-auto")
    for q in ("5%", "10%"):
        flipped = {
            title: table for title, table in frames.items() if f", {q} of labels flipped" in title
        }
        assert len(flipped) == 3
        assert not any(c.startswith("paper") for table in flipped.values() for c in table)


@pytest.mark.parametrize("text", ["", results.END.format(what="results", profile="smoke"), "twice"])
def test_a_page_without_marks_is_left_alone(tmp_path, text):
    page = tmp_path / "PAGE.md"
    text = (
        text
        if text != "twice"
        else 2 * results.BEGIN.format(what="results", profile="smoke", file="PAGE.md")
    )
    page.write_text(text)
    with pytest.raises(UserError, match="must hold the lines"):
        results.write("smoke", page, BLOCKS)
    assert page.read_text() == text


def test_nothing_finished(capsys):
    assert cli.main(["report", "nowhere", "--format", "md"]) == 2
    assert "profile 'nowhere' unknown; choose from" in capsys.readouterr().err


@pytest.mark.parametrize("profile", ["paper", "label-noise", "beyond"])
def test_the_pages_say_what_is_stored(profile):
    """The block is that of `softad report --format md`, and no number stands in the prose around it."""
    page = (ROOT / "outputs" / profile / "README.md").read_text(encoding="utf-8")
    head, rest = page.split(results.BEGIN.format(what="results", profile=profile, file="README.md"))
    block, tail = rest.split(results.END.format(what="results", profile=profile))
    assert block.strip() == results.markdown(profile).strip()
    assert not tail.strip()
    prose = head.split("<!-- tests")[0] + head.rpartition("<!-- end of tests")[2]
    assert not re.findall(r"\d+\.\d+", prose)


def test_so_do_the_tables_beside_the_rows(tmp_path):
    written = {path.name: path.read_bytes() for path in results.write_csv("paper", tmp_path)}
    stored = {path.name: path.read_bytes() for path in (ROOT / "outputs/paper/tables").iterdir()}
    assert stored == written


def test_the_same_as_csv(tmp_path, capsys):
    assert cli.main(["report", "smoke", "--format", "csv", "--output", str(tmp_path)]) == 0
    frames = results.frames("smoke")
    paths = capsys.readouterr().out.split()
    assert len(paths) == len(frames) == len(list(tmp_path.iterdir()))
    for path, frame in zip(paths, frames.values()):
        assert pd.read_csv(path, dtype=str).shape == frame.shape
    assert (tmp_path / "loss_gaps_ties_to_the_largest.csv").exists()
    assert (tmp_path / "softads_theta_against_floodings.csv").exists()


def between(page, what, file="README.md"):
    """What stands between the marks of a block of profile `paper`."""
    begin, end = (
        mark.format(what=what, profile="paper", file=file) for mark in (results.BEGIN, results.END)
    )
    return page.split(begin)[1].split(end)[0].strip()


def test_the_overview_in_the_readme_is_of_the_stored_rows():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert between(page, "overview") == overview.overview("paper").strip()


def test_the_tests_of_the_paper_are_of_the_stored_rows():
    page = (ROOT / "outputs" / "paper" / "README.md").read_text(encoding="utf-8")
    assert between(page, "tests") == audit_page.tests("paper").strip()


def test_the_overview_compares_two_thetas_with_erm(monkeypatch):
    """Means by hand, none of Flooding. SoftAD's larger θ has the higher validation accuracy in trial 0, a tie in 1."""
    facts = {
        "dataset": "gaussian",
        "label_noise": 0.0,
        "epoch": 1,
        "loss_val": 0.1,
        "acc_train": 1.0,
    }
    runs = [
        ("erm", 0, math.nan, 0.0, 0.30, 0.90, 0.5, 9.0), ("erm", 1, math.nan, 0.0, 0.50, 0.80, 0.5, 9.0),
        ("softad", 0, 0.1, 0.1, 0.20, 0.95, 0.5, 8.0), ("softad", 1, 0.1, 0.1, 0.30, 0.90, 0.6, 8.0),
        ("softad", 0, 0.6, 0.6, 0.61, 0.99, 0.6, 7.0), ("softad", 1, 0.6, 0.6, 0.61, 0.99, 0.6, 7.0),
        ("sam", 0, 0.5, 0.1, 0.21, 0.98, 0.5, 8.5), ("sam", 1, 0.5, 0.1, 0.21, 0.98, 0.5, 8.5),
        ("cvar", 0, 0.5, 0.1, 0.11, 1.00, 0.5, 8.5), ("cvar", 1, 0.5, 0.1, 0.11, 1.00, 0.5, 8.5),
    ]  # fmt: skip
    names = (
        "method",
        "trial",
        "knob",
        "loss_train",
        "loss_test",
        "acc_test",
        "acc_val",
        "model_norm",
    )
    rows = pd.DataFrame([facts | dict(zip(names, run)) for run in runs])
    monkeypatch.setattr(results.reader, "read", lambda profile, final: rows)
    methods = ["erm", "cvar", "sam", "softad"]
    stored = pd.DataFrame({"dataset": "gaussian", "method": methods, "word": ""})
    monkeypatch.setattr(results.reader, "provenances", lambda profile: stored)
    monkeypatch.setattr(
        overview.coverage,
        "labels",
        lambda given: {"gaussian": f"gaussian, {list(given['method'])}"},
    )
    table, words = overview.overview("tiny").strip().split("\n\n")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert lines[0][2:] == ["θ", "n", "gap", "test loss", "test accuracy, %", "norm"]
    assert lines[2][0] == "gaussian, ['erm', 'sam', 'softad']", (
        "CVaR's trials are not of this table"
    )
    assert [line[1:] for line in lines[2:]] == [
        ["ERM", "–", "2", "0.400", "0.400", "85.0", "9.0"],
        ["SoftAD, smallest θ", "0.10", "2", "0.150", "0.250", "92.5", "8.0"],
        ["SoftAD, selected θ", "0.60", "2", "0.010", "0.610", "99.0", "7.0"],
        ["SAM, selected radius", "–", "2", "0.110", "0.210", "98.0", "8.5"],
    ]
    smallest, selected, lowest, highest, along, _ = words.splitlines()
    assert (
        "gap than ERM's on 1 of 1 sets, a smaller norm on 1, a smaller test loss on 1" in smallest
    )
    assert smallest.endswith("+7.5 to +7.5 points from ERM's.")
    assert "a smaller test loss on 0;" in selected
    assert (
        lowest
        == "- Lowest mean test loss: SAM, selected radius, on gaussian, ['erm', 'sam', 'softad']."
    )
    assert highest.startswith("- Highest mean accuracy: SoftAD, selected θ, on gaussian")
    assert along == "- SoftAD's test loss is lowest at θ = 0.10 on gaussian."


def test_an_overview_without_results_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    with pytest.raises(UserError, match="profile 'tiny' has no finished runs of ERM and SoftAD"):
        overview.overview("tiny")


def test_runs_whose_hours_are_unknown_stand_beside_the_hours():
    facts = {
        "label_noise": "0",
        "runs": 10,
        "device": "cpu",
        "torch": "2",
        "finished": "2026-01-02",
    }
    lines = [made("erm", 1) | facts | {"seconds": 1800, "runs_without_session": 0}]
    lines += [made("softad", 10) | facts | {"seconds": 5400, "runs_without_session": 3}]
    (line,) = results.effort(pd.DataFrame(lines)).to_dict("records")
    assert (line["runs"], line["without a session"], line["hours"]) == (20, 3, 2.0)


def test_shares_of_flipped_labels_are_written_in_full():
    facts = {"has": "a smaller gap", "against": "erm", "dataset": "spiral", "ties": "largest"}
    levels = [0.02, 0.025]
    outcomes = pd.DataFrame([facts | {"label_noise": q, "finds": "yes", "n": 9} for q in levels])
    columns = list(audit_page.table(outcomes).columns)
    assert columns[-2:] == ["spiral, 2% flipped, largest", "spiral, 2.5% flipped, largest"]
