"""The report of a profile: one page that needs nothing beside it, and tables as files."""

import re
import shutil

import nbformat
import pandas as pd
import pytest
from helpers.workspace import REPOSITORY, make_home, write_notebook

from softadlib._validation import UserError
from softadlib.analysis import markdown
from softadlib.workbook import cli, report

PICTURE = "import matplotlib.pyplot as plt; plt.plot([0, 1]); plt.show()"
TABLE = "from softadlib import results; results.read(profile, final=True)"
LINKS = (
    "# The frontier\n\nSee [curves](curves.ipynb#End), [theory](fig01_quadratic_gradients.ipynb), "
    "[gone](gone.ipynb), [index](README.md) and [elsewhere](https://example.org).\n\n## End"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A workbook with results of your own data set, two pages drawn of it and one of no profile."""
    home = make_home(tmp_path_factory.mktemp("reported"), own={"table": "own.csv"}, gaussian={})
    table = pd.DataFrame({"size": range(100), "kind": ["red", "blue"] * 50})
    table.to_csv(home / "own.csv", index=False)
    folder = home / "notebooks"
    write_notebook(folder / "frontier.ipynb", PICTURE, TABLE, parameters="profile = 'tiny'")
    (folder / "_toc.yml").write_text(
        "- part: The first part\n  pages: [{page: frontier, answer: a}, {page: absent, answer: b}]\n"
    )
    parameters = "profile = 'tiny'\ndataset = 'gaussian'"
    write_notebook(folder / "curves.ipynb", PICTURE, PICTURE, parameters=parameters)
    for name, text in (("frontier", LINKS), ("curves", "# Curves <of> a run\n\n## End")):
        document = nbformat.read(folder / f"{name}.ipynb", as_version=4)
        document.cells.insert(0, nbformat.v4.new_markdown_cell(text, id="title"))
        nbformat.write(document, folder / f"{name}.ipynb")
    shared = home / "outputs/figures"
    shared.mkdir(parents=True)
    for place in (folder, shared):
        shutil.copy(REPOSITORY / "notebooks/fig01_quadratic_gradients.ipynb", place)
    shutil.copy(
        REPOSITORY / "notebooks/fig03_update_directions.ipynb", shared / "fig03.error.ipynb"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTAD_HOME", str(home))
        assert cli.main(["train", "tiny", "-j", "1"]) == 0
        assert cli.main(["draw", "tiny", "-j", "2"]) == 0
        assert cli.main(["report", "tiny"]) == 0
        yield home / "outputs/tiny/index.html"


def test_the_page_opens_with_pictures_and_tables_and_links_within_itself(page):
    text = page.read_text(encoding="utf-8")
    order = [
        "The first part",
        "The frontier",
        "<img",
        "<table",
        "Other pages",
        "Curves &lt;of&gt; a run",
        "How each was run",
    ]
    places = [text.index(word, text.index("<main")) for word in order]
    assert places == sorted(places)
    alts = re.findall(r'<img[^>]*\salt="([^"]*)"', text)
    assert alts[0] == "The frontier, picture 1 of 1"
    assert {f"Curves <of> a run: {name}, picture 2 of 2" for name in ("own", "gaussian")} <= {
        alt.replace("&lt;", "<").replace("&gt;", ">") for alt in alts
    }
    assert len(alts) == text.count("<img")
    identifiers = re.findall(r'\sid="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))
    links = dict(re.findall(r"<a href=\"([^\"]*)\">(\w+)</a>", text))
    assert {links["#curves-gaussian"], links["#fig01_quadratic_gradients"]} == {"curves", "theory"}
    assert links["https://example.org"] == "elsewhere"
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(identifiers)
    assert set(re.findall(r'(?:href|src)="(?!#|data:)([^"]*)"', text)) == {"https://example.org"}
    assert "<a>gone</a>" in text
    assert ".error" not in text
    assert "<script" not in text
    assert re.search(r"<td>own</td>\s*<td>ERM</td>", text), "how each was run"


def test_output_is_written_where_it_is_told(page, tmp_path, capsys):
    target = tmp_path / "new" / "page.html"
    assert cli.main(["report", "tiny", "--output", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    assert target.read_text().count("<img") == page.read_text().count("<img")
    (tmp_path / "taken").write_text("")
    assert cli.main(["report", "tiny", "--output", str(tmp_path / "taken" / "x.html")]) == 2
    assert f"{tmp_path}/taken/x.html cannot be written" in capsys.readouterr().err


def test_tables_as_markdown_latex_and_csv(page, tmp_path, capsys):
    """What is in them, and how they are written between marks: tests/analysis/test_markdown.py."""
    for form in ("md", "latex"):
        assert cli.main(["report", "tiny", "--format", form]) == 0
        assert capsys.readouterr().out.strip() == markdown.text("tiny", form).strip()
        target = tmp_path / f"tables.{form}"
        for _ in range(2):  # a file of its own is written anew
            assert cli.main(["report", "tiny", "--format", form, "--output", str(target)]) == 0
            assert markdown.text("tiny", form).strip() in target.read_text()
        capsys.readouterr()
    other, picture = tmp_path / "NOTES.md", tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG")
    other.write_text("Notes\n<!-- results of profile paper: softad report paper -->\n")
    for path, status in ((other, 2), (picture, 0)):
        assert cli.main(["report", "tiny", "--format", "md", "--output", str(path)]) == status
    assert other.read_text().startswith("Notes"), "a page of another profile stays as it is"
    assert "must hold the lines" in capsys.readouterr().err
    folder = tmp_path / "csv"
    assert cli.main(["report", "tiny", "--format", "csv", "--output", str(folder)]) == 0
    paths = capsys.readouterr().out.split()
    assert sorted(paths) == sorted(map(str, folder.iterdir()))
    assert all("dataset" in pd.read_csv(path) for path in paths)


def test_a_broken_page_is_named(page, tmp_path):
    path = tmp_path / "half.ipynb"
    path.write_text(page.read_text()[:50])
    with pytest.raises(UserError, match=f"{path} is broken .*delete it and run again what drew it"):
        report.section(path, "half")
