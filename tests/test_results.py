"""The README's results say what is stored and nothing else."""

from pathlib import Path

import pandas as pd
import pytest

from softadlib import cli, results, store
from softadlib.errors import UserError
from softadlib.metrics import COLUMNS

ROOT = Path(__file__).parents[1]


def rows(gap: float, theta: float, trial: int, method: str = "softad") -> dict:
    numbers = [0.1, 0.2, 0.1 + gap, 0.9, 0.8, 0.75, 12.34]
    return dict(zip(COLUMNS, ["gaussian", method, trial, theta, 5, *numbers])) | {
        "label_noise": 0.0
    }


def test_gaps_by_hand():
    table = results.gaps(pd.DataFrame([rows(0.2, 0.1, 0), rows(0.4, 0.1, 1)])).iloc[0]
    # t(.975, 1) = 12.706, s/√2 = .1: .3 ± 1.271; the paper's Table 1 has .004
    assert table["paper"] == "0.004"
    assert table["gap (largest)"] == table["gap (smallest)"] == "0.300 [-0.971, 1.571]"
    assert (table["test loss (largest)"], table["acc. % (largest)"]) == ("0.400", "75.0")
    assert (table["norm (largest)"], table["n"]) == ("12.3", 2)


def test_ties_and_selected_values_by_hand():
    both = pd.DataFrame([rows(0.2, 0.1, 0), rows(0.4, 0.5, 0)])
    table = results.knobs(both).iloc[0]
    assert (table["largest"], table["smallest"], table["tied"]) == ("0.50", "0.10", "2.0")
    assert table["at an end (largest)"] == table["at an end (smallest)"] == "1/1"
    assert table["paper"] == "0.08 (0.08)"
    gaps = results.gaps(both).iloc[0]
    assert (gaps["gap (largest)"], gaps["gap (smallest)"]) == ("0.400", "0.200")


def test_nothing_is_the_papers_protocol_that_is_not():
    made = store.provenances("smoke")
    cut = results.reductions(made)
    assert cut["digits"] == "not in the paper"
    assert "2 of 15 trials" in cut["gaussian"]
    assert "20 of 500 epochs" in cut["gaussian"]
    text = results.markdown("smoke")
    assert text.count(f"| gaussian ({cut['gaussian']}) |") == text.count("| gaussian (") == 13


def test_the_paper_itself_is_called_so():
    facts = {
        "dataset": "gaussian", "trials": 15, "grid": 40, "epochs": 500,
        "samples": "100 + 100 + 20000", "dtype": "float32",
    }  # fmt: skip
    assert results.reductions(pd.DataFrame([facts])) == {"gaussian": ""}


def test_written_between_its_marks_and_nowhere_else(tmp_path):
    page = tmp_path / "PAGE.md"
    marks = results.BEGIN.format(profile="smoke", file="PAGE.md"), results.END
    page.write_text(f"before\n{marks[0]}\nold\n{marks[1]}\nafter\n")
    assert results.write("smoke", page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert results.markdown("smoke") in text
    assert not results.write("smoke", page)


@pytest.mark.parametrize("text", ["", results.END, "twice"])
def test_a_page_without_marks_is_left_alone(tmp_path, text):
    page = tmp_path / "PAGE.md"
    text = text if text != "twice" else 2 * results.BEGIN.format(profile="smoke", file="PAGE.md")
    page.write_text(text)
    with pytest.raises(UserError, match="must hold the lines"):
        results.write("smoke", page)
    assert page.read_text() == text


def test_nothing_finished(capsys):
    assert cli.main(["results", "nowhere"]) == 2
    assert "nothing is finished in profile 'nowhere'" in capsys.readouterr().err


def test_the_readme_says_what_is_stored():
    """Once it has results: every number of them comes out of `softad results paper`."""
    text, begin = (
        (ROOT / "README.md").read_text(),
        results.BEGIN.format(profile="paper", file="README.md"),
    )
    if begin in text:
        assert (
            text.split(begin)[1].split(results.END)[0].strip() == results.markdown("paper").strip()
        )
