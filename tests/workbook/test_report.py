"""The report of a profile: one page that needs nothing beside it, and tables as files."""

import os
import re
import shutil

import nbformat
import pandas as pd
import pytest
from helpers.workspace import REPOSITORY, make_home, write_notebook

from softadlib._validation import UserError
from softadlib.workbook import cli, report

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PICTURE = "import matplotlib.pyplot as plt; plt.plot([0, 1]); plt.show()"
TABLE = "from softadlib import results; results.read(profile, final=True)"
LINKS = (
    "# The frontier\n\nSee [curves](curves.ipynb#End), [theory](fig01_quadratic_gradients.ipynb), "
    "[gone](gone.ipynb), [index](README.md) and [elsewhere](https://example.org).\n\n## End"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A workbook with results of one's own data set, two pages drawn of it and one of no profile."""
    home = make_home(tmp_path_factory.mktemp("reported"), own={"table": "own.csv"}, gaussian={})
    table = pd.DataFrame({"size": range(100), "kind": ["red", "blue"] * 50})
    table.to_csv(home / "own.csv", index=False)
    folder = home / "notebooks"
    write_notebook(folder / "frontier.ipynb", PICTURE, TABLE, parameters="profile = 'tiny'")
    parameters = "profile = 'tiny'\ndataset = 'gaussian'"
    write_notebook(folder / "curves.ipynb", PICTURE, PICTURE, parameters=parameters)
    for name, text in (("frontier", LINKS), ("curves", "# Curves <of> a run\n\n## End")):
        document = nbformat.read(folder / f"{name}.ipynb", as_version=4)
        document.cells.insert(0, nbformat.v4.new_markdown_cell(text, id="title"))
        nbformat.write(document, folder / f"{name}.ipynb")
    shared = home / "outputs/figures"
    shared.mkdir(parents=True)
    shutil.copy(REPOSITORY / "notebooks/fig01_quadratic_gradients.ipynb", shared)
    shutil.copy(
        REPOSITORY / "notebooks/fig03_update_directions.ipynb", shared / "fig03.error.ipynb"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTAD_HOME", str(home))
        assert cli.main(["train", "tiny", "-j", "1"]) == 0
        assert cli.main(["run", "tiny", "--draw-only", "-j", "2"]) == 0
        assert cli.main(["report", "tiny"]) == 0
        yield home / "outputs/tiny/index.html"


def test_the_page_opens_with_pictures_and_tables_and_links_within_itself(page):
    text = page.read_text(encoding="utf-8")
    order = [
        "The frontier",
        "<img",
        "<table",
        'class="chapter"',
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


def test_no_word_of_the_frame_is_of_the_paper(page):
    text = page.read_text(encoding="utf-8")
    frame = re.sub(r"<section.*?</section>|<style>.*?</style>", "", text, flags=re.S)
    assert "paper" not in frame.lower()
    assert "NeurIPS" not in frame


def test_output_is_written_where_it_is_told(page, tmp_path, capsys):
    target = tmp_path / "new" / "page.html"
    assert cli.main(["report", "tiny", "--output", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    assert target.read_text().count("<img") == page.read_text().count("<img")
    (tmp_path / "taken").write_text("")
    assert cli.main(["report", "tiny", "--output", str(tmp_path / "taken" / "x.html")]) == 2
    assert f"{tmp_path}/taken/x.html cannot be written" in capsys.readouterr().err


def test_tables_as_markdown_latex_and_csv(page, tmp_path, capsys):
    assert cli.main(["report", "tiny", "--format", "md"]) == 0
    markdown = capsys.readouterr().out
    assert "| dataset | " in markdown
    assert "own" in markdown
    assert "paper's" not in markdown, "no column of printed values"
    for form, beginning in (("md", markdown[:20]), ("latex", "%")):
        target = tmp_path / f"tables.{form}"
        for _ in range(2):  # a file of its own is written anew
            assert cli.main(["report", "tiny", "--format", form, "--output", str(target)]) == 0
            assert target.read_text().startswith(beginning)
    assert r"\begin{tabular}" in (tmp_path / "tables.latex").read_text()
    begin = "<!-- results of profile tiny: softad report tiny --format md --output page.md -->"
    end = "<!-- end of results of profile tiny -->"
    marked = tmp_path / "page.md"
    marked.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    assert cli.main(["report", "tiny", "--format", "md", "--output", str(marked)]) == 0
    text = marked.read_text()
    assert text.startswith(f"before\n{begin}")
    assert text.endswith(f"{end}\nafter\n")
    assert markdown.strip() in text
    capsys.readouterr()
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


@pytest.fixture(scope="module")
def browser():
    """Chromium of the system."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as play:
        options = ["--no-sandbox", "--disable-gpu"]  # root in a container may have no sandbox
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=options)
        yield chromium
        chromium.close()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning"
)  # playwright leaves a socket to the collector
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser(browser, page, width):
    tab, asked, said = browser.new_page(viewport={"width": width, "height": 900}), [], []
    tab.on("request", lambda request: asked.append(request.url.split("#")[0]))
    tab.on("console", lambda message: said.append(message.text))
    tab.goto(page.as_uri())
    assert tab.locator("main img").first.bounding_box()["y"] < 900, "a picture on the first screen"
    wide = "document.documentElement.scrollWidth > innerWidth"
    assert not tab.evaluate(wide)
    assert tab.locator("details.chapter").count() == 3
    tab.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert not tab.evaluate(wide)
    for picture in tab.locator("main img").all():
        picture.evaluate("e => e.decode()")
        assert picture.evaluate("e => Math.min(e.naturalWidth, e.naturalHeight)") > 100
        assert picture.bounding_box()["width"] <= width
    tab.evaluate("document.querySelectorAll('details').forEach(e => e.open = false)")
    tab.get_by_role("link", name="curves").click()
    assert tab.url.endswith("#curves-gaussian")
    assert tab.locator("#curves-gaussian").is_visible(), (
        "a link opens the chapter that it leads into"
    )
    assert said == []
    assert [address for address in set(asked) if not address.startswith("data:")] == [page.as_uri()]
    if where := os.environ.get("SOFTAD_SCREENSHOTS"):
        tab.screenshot(path=f"{where}/report-{width}.png")
    tab.close()
