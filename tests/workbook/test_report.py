"""The report of a profile: one page that needs nothing beside it, and tables as files."""

import os
import re
import time

import nbformat
import pandas as pd
import pytest
from helpers.workspace import make_home
from nbformat import v4

from softadlib._validation import UserError
from softadlib.workbook import cli
from softadlib.workbook.analysis import report_tables
from softadlib.workbook.pages import notebooks, report

LINKS = (
    "See [curves](curves.ipynb#End), [theory](fig01.ipynb), [below](#End), "
    "[gone](gone.ipynb), [index](README.md) and [elsewhere](https://example.org).\n\n## End"
)
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PICTURE = v4.new_output("display_data", data={"image/png": PIXEL, "text/plain": "<Figure>"})
TABLE = v4.new_output("display_data", data={"text/html": "<table><tr><td>1</td></tr></table>"})


def write_page(path, title, *outputs, parameters="size = 1", profiles=()):
    """Write a notebook: a title, a cell with its parameters, formulas and links, a cell with outputs."""
    cells = [
        v4.new_markdown_cell(f"# {title}"),
        v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}),
        v4.new_markdown_cell(f"Where $x_1 > 0$. {LINKS}"),
        v4.new_code_cell("secret()", outputs=list(outputs)),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "softad": {"profiles": profiles or []}}
    document = v4.new_notebook(cells=cells, metadata=metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(document, path)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A workbook with results of your own data set, two pages drawn of it and one of no profile."""
    home = make_home(tmp_path_factory.mktemp("reported"), own={"table": "own.csv"}, gaussian={})
    table = pd.DataFrame({"size": range(100), "kind": ["red", "blue"] * 50})
    table.to_csv(home / "own.csv", index=False)
    (home / "notebooks/_toc.yml").write_text(
        "- part: The first part\n  pages: [{page: frontier, answer: a}, {page: absent, answer: b}]\n"
    )
    figures = home / "outputs/tiny/figures"
    one = {"parameters": "profile = 'tiny'", "profiles": "all"}
    each = {"parameters": "profile = 'tiny'\ndataset = 'own'", "profiles": "all"}
    for path in (home / "notebooks/frontier.ipynb", figures / "frontier.ipynb"):
        write_page(path, "The frontier", PICTURE, TABLE, **one)
    write_page(home / "notebooks/curves.ipynb", "Curves & points", **each)
    for dataset in ("own", "gaussian"):
        path = figures / f"curves-{dataset}.ipynb"
        write_page(path, "Curves & points", PICTURE, PICTURE, **each)
    for path in (home / "notebooks/fig01.ipynb", home / "outputs/figures/fig01.ipynb"):
        write_page(path, "Theory")
    write_page(home / "outputs/figures/fig03.error.ipynb", "Failed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTAD_HOME", str(home))
        assert cli.main(["train", "tiny", "--method", "erm", "-j", "1"]) == 0
        assert cli.main(["report", "tiny"]) == 0
        yield home / "outputs/tiny/index.html"


def test_the_page_opens_with_pictures_and_tables_and_links_within_itself(page):
    text = page.read_text(encoding="utf-8")
    order = ["The first part", "The frontier", "<math", "<img", "<table", "Other pages"]
    order += ["Curves &amp; points", "How each was run"]
    places = [text.index(word, text.index("<main")) for word in order]
    assert places == sorted(places)
    alts = re.findall(r'<img[^>]*\salt="([^"]*)"', text)
    assert len(alts) == text.count("<img") == 5
    assert alts[0] == "The frontier, picture 1"
    assert alts[2].endswith("on gaussian, picture 2")
    identifiers = re.findall(r'\sid="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))
    links = re.findall(r'<a href="([^"]*)">(\w+)</a>', text)
    assert {("#curves-gaussian", "curves"), ("#fig01", "theory")} <= set(links)
    assert {("#frontier-End", "below"), ("https://example.org", "elsewhere")} <= set(links)
    assert {link[1:] for link, _ in links if link[0] == "#"} <= set(identifiers)
    assert set(re.findall(r'(?:href|src)="(?!#|data:)([^"]*)"', text)) == {"https://example.org"}
    assert "<a>gone</a>" in text
    for hidden in (".error", "Failed", "<script", "secret", "profile = ", "$x_1"):
        assert hidden not in text
    assert re.search(r"<td>own</td>\s*<td>ERM</td>", text), "how each was run"


def test_the_page_opens_with_the_comparison_of_methods(tmp_path, monkeypatch, capsys):
    """Of data of one's own; the other pages that can be drawn of them are folded."""
    home = make_home(tmp_path, ("compare", "claims", "real_tables"), own={"table": "own.csv"})
    monkeypatch.setenv("SOFTAD_HOME", str(home))
    table = pd.DataFrame({"size": range(100), "kind": ["red", "blue"] * 50})
    table.to_csv(home / "own.csv", index=False)
    assert cli.main(["report", "tiny"]) == 2
    assert "first: softad run tiny" in capsys.readouterr().err
    assert cli.main(["train", "tiny", "--method", "erm,softad", "-j", "1"]) == 0
    assert cli.main(["report", "tiny"]) == 2
    assert "first: softad draw tiny" in capsys.readouterr().err
    assert cli.main(["draw", "tiny", "-j", "1"]) == 0
    assert [p.stem for p in (home / "outputs/tiny/figures").iterdir()] == ["compare"]
    assert cli.main(["report", "tiny"]) == 0
    text = (home / "outputs/tiny/index.html").read_text(encoding="utf-8")
    assert "Trained: 2 methods × 1 data set, 2 trials each; 6 runs, " in text
    first = text[text.index("<main") :].split("<details")[0]
    for word in (
        "<img",
        "test loss, last",
        "accuracy, %, last",
        "value",
        "after T",
        "ERM",
        "SoftAD",
    ):
        assert word in first
    assert "On all five sets" not in first, "what is said of stored results"
    assert "<b>" in first


def test_output_is_written_where_it_is_told(page, tmp_path, capsys):
    target = tmp_path / "new" / "page.html"
    assert cli.main(["report", "tiny", "--output", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    assert target.read_text().count("<img") == page.read_text().count("<img")
    (tmp_path / "taken").write_text("")
    assert cli.main(["report", "tiny", "--output", str(tmp_path / "taken" / "x.html")]) == 2
    assert f"{tmp_path}/taken/x.html cannot be written" in capsys.readouterr().err


def test_pages_that_are_older_than_the_results_are_named(page, capsys):
    study = page.parent / "gaussian/erm.parquet"
    for path in (page.parent / "figures").iterdir():
        os.utime(path)
    assert cli.main(["report", "tiny"]) == 0
    assert not capsys.readouterr().err
    later = time.time() + 100
    os.utime(study, (later, later))
    assert cli.main(["report", "tiny"]) == 0
    said = capsys.readouterr().err
    assert "curves-gaussian" in said
    assert "curves-own" not in said
    assert "softad draw tiny" in said


def test_tables_as_markdown_latex_and_csv(page, tmp_path, capsys):
    """What is in them, and how they are written between marks: tests/workbook/analysis/test_report_tables.py."""
    for form in ("md", "latex"):
        text = report_tables.text("tiny", form)
        assert cli.main(["report", "tiny", "--format", form]) == 0
        assert capsys.readouterr().out == text
        target = tmp_path / f"tables.{form}"
        for _ in range(2):  # a file of its own is written anew
            assert cli.main(["report", "tiny", "--format", form, "--output", str(target)]) == 0
            assert target.read_text() == text
            assert capsys.readouterr().out == f"{target}\n"
    other = tmp_path / "NOTES.md"
    other.write_text("Notes\n<!-- results of profile paper: softad report paper -->\n")
    assert cli.main(["report", "tiny", "--format", "md", "--output", str(other)]) == 2
    assert other.read_text().startswith("Notes"), "a page of another profile stays as it is"
    assert "must hold the lines" in capsys.readouterr().err
    folder = tmp_path / "csv"
    assert cli.main(["report", "tiny", "--format", "csv", "--output", str(folder)]) == 0
    paths = capsys.readouterr().out.split()
    assert sorted(paths) == sorted(map(str, folder.iterdir()))
    assert all("dataset" in pd.read_csv(path) for path in paths)


def test_a_broken_page_is_named(tmp_path):
    path = tmp_path / "half.ipynb"
    path.write_text('{"cells": [')
    with pytest.raises(UserError, match=f"{path} is broken .*delete it and run again what drew it"):
        report.section(notebooks.Page("half", path, path, {}), {})
