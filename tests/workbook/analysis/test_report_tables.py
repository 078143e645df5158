"""Results as Markdown, LaTeX and CSV hold what is stored and nothing else."""

import re

import pandas as pd
import pytest
from helpers.workspace import REPOSITORY

from softadlib._validation import UserError
from softadlib.workbook.analysis import report_tables, tables
from softadlib.workbook.studies import results


@pytest.fixture(scope="module")
def text():
    return report_tables.text("smoke")


def test_every_table_has_the_stored_rows_and_no_sentence(text):
    titles = re.findall(r"^#### (.+)$", text, re.M)
    assert titles == [
        "What was run", "Loss gaps (Tables 1 and 3)", "Test losses", "Test accuracies, %", "Norms",
        "Selected values (Tables 2 and 4)", "SoftAD along θ, nothing selected",
    ]  # fmt: skip
    assert all(line[:1] in "|#" for line in text.splitlines())
    rows = results.read("smoke", final=True)
    erm = rows[(rows["method"] == "erm") & (rows["dataset"] == "spiral")]
    gap = (erm["loss_test"] - erm["loss_train"]).mean()
    assert re.search(rf"\| spiral \| ERM \| 2 \| 0\.297 \| {gap:.3f} \[", text)


def test_latex_has_the_same_tables(text):
    latex = report_tables.text("smoke", "latex")
    assert latex.count(r"\begin{tabular}") == text.count("####") == 7
    assert "spiral & ERM & 2 & 0.297" in latex
    letters = {letter for letter in latex if ord(letter) > 127}
    assert letters == {"–"}, "pdflatex knows a dash, and no Greek letters"
    with pytest.raises(UserError, match="format 'pdf' unknown; choose from md, latex"):
        report_tables.text("smoke", "pdf")


def test_csv_has_typed_columns(tmp_path):
    paths = report_tables.write_csv("smoke", tmp_path)
    assert {p.name for p in paths} == {
        "what_was_run.csv", "loss_gaps.csv", "test_losses.csv", "test_accuracies.csv", "norms.csv",
        "selected_values.csv", "softad_along_theta_nothing_selected.csv",
    }  # fmt: skip
    gaps = pd.read_csv(tmp_path / "loss_gaps.csv").set_index(["dataset", "method"])
    rows = tables.read("smoke", final=True)
    erm = rows[(rows["method"] == "erm") & (rows["dataset"] == "spiral")]
    assert gaps.loc[("spiral", "erm"), "largest"] == pytest.approx(erm["gap"].mean(), rel=1e-5)


def test_only_what_stands_between_marks_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(report_tables, "text", lambda profile: f"tables of {profile}\n")
    begin = report_tables.BEGIN.format(what="results", profile="smoke", file="PAGE.md")
    end = report_tables.END.format(what="results", profile="smoke")
    page = tmp_path / "PAGE.md"
    page.write_text(f"before\n\n{begin}\nold\n{end}\n\nafter\n")
    assert report_tables.write("smoke", page)
    assert page.read_text() == f"before\n\n{begin}\n\ntables of smoke\n\n{end}\n\nafter\n"
    assert not report_tables.write("smoke", page), "a second time nothing changes"


@pytest.mark.parametrize("content", ["no marks", "<!-- end of results of profile smoke -->"])
def test_a_page_without_marks_is_refused(tmp_path, content):
    page = tmp_path / "PAGE.md"
    page.write_text(content)
    with pytest.raises(UserError, match="must hold the lines"):
        report_tables.write("smoke", page)
    assert page.read_text() == content
    with pytest.raises(UserError, match="cannot be read"):
        report_tables.write("smoke", tmp_path / "ABSENT.md")


def test_the_overview_by_independent_sums():
    """The overview of profile paper, from the rows with pandas alone."""
    lines = [
        [c.strip() for c in line.strip("|").split("|")]
        for line in report_tables.overview("paper").splitlines()
    ]
    head, spiral = lines[0], next(i for i, line in enumerate(lines) if line[0].startswith("spiral"))
    erm, smallest = (dict(zip(head, lines[i])) for i in (spiral, spiral + 1))
    rows = results.read("paper", "spiral", final=True)
    soft = rows[(rows["method"] == "softad") & (rows["knob"] == 0.01)]
    assert smallest["test loss"] == f"{soft['loss_test'].mean():.3f}"
    assert smallest["gap"] == f"{(soft['loss_test'] - soft['loss_train']).mean():.3f}"
    assert smallest["accuracy, %"] == f"{100 * soft['acc_test'].mean():.1f}"
    losses = results.read_losses("paper", "spiral")
    ece = losses[(losses["method"] == "erm") & (losses["split"] == "test")]["ece"].mean()
    assert erm["ECE, %"] == f"{100 * ece:.1f}"
    assert smallest["ECE, %"] == "–", "losses of few of these runs are stored"
    selected = dict(zip(head, lines[spiral + 2]))
    chosen = results.select(rows[rows["method"] == "softad"], "largest")[["trial", "knob"]]
    ends = losses[(losses["method"] == "softad") & (losses["split"] == "test")]
    ends = ends[ends["epoch"] == 500].merge(chosen, on=["trial", "knob"])
    assert len(ends) == 15
    assert selected["ECE, %"] == f"{100 * ends['ece'].mean():.1f}", "of the selected runs alone"
    noisy = results.read("label-noise", "spiral", final=True)
    noisy = noisy[(noisy["method"] == "erm")]["loss_test"].mean()
    assert erm["test loss, 5 % flipped"] == f"{noisy:.3f}"
    sides = [line[1] for line in lines[spiral : spiral + 6]]
    assert sides == [
        "ERM", "SoftAD, smallest θ", "SoftAD, selected θ", "iFlood, selected θ",
        "Flooding, selected θ", "SAM, selected radius",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("page", "profile"),
    [(f"outputs/{p}/README.md", p) for p in ("paper", "label-noise", "beyond", "images")],
)
def test_committed_pages_hold_the_tables_of_the_committed_rows(page, profile, tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text((REPOSITORY / page).read_text(encoding="utf-8"), encoding="utf-8")
    assert not report_tables.write(profile, copy), (
        f"softad report {profile} --format md --output {page}"
    )
