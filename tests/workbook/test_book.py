"""The book as its readers see it: built without a warning, read in Chromium at two widths."""

import html
import inspect
import itertools
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.workspace import REPOSITORY

import softadlib
from softadlib import functional as F
from softadlib.workbook.pages.toc import read_toc

pytest.importorskip("myst_nb", reason="the book needs the extra `book`")
BOOK = REPOSITORY / "softadlib/workbook/pages/book"
API = "softadlib/workbook/pages/book/api"
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
NOTEBOOKS = sorted(path.stem for path in (REPOSITORY / "notebooks").glob("*.ipynb"))
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium: apt-get install chromium"
)


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    folder = tmp_path_factory.mktemp("book")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", BOOK, ".", folder]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


def pages(book: Path) -> list[str]:
    left_out = {"search.html", "index.html"}  # the second leads to the first page at once
    paths = (p.relative_to(book).as_posix() for p in book.rglob("*.html"))
    return sorted(p for p in paths if p not in left_out and not p.startswith("_"))


LOOK = """() => {
  const scrolls = e => ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
  const inBox = e => e && e.tagName !== "ARTICLE" && (scrolls(e) || inBox(e.parentElement));
  const right = e => e.getBoundingClientRect().width && e.getBoundingClientRect().right;
  const images = [...document.images];
  return {
    wide: Math.max(0, document.documentElement.scrollWidth - innerWidth),
    cut: [...document.querySelectorAll("article *")]
      .filter(e => right(e) > innerWidth + 1 && !inBox(e.parentElement)).map(e => e.outerHTML.slice(0, 80)),
    bare: images.filter(i => !/\\S+ \\S+/.test(i.alt)).map(i => i.src),
    broken: images.filter(i => i.complete && !i.naturalWidth).map(i => i.src),
  };
}"""


class Links(HTMLParser):
    """What a page links to, and what in it can be linked to."""

    def __init__(self):
        super().__init__()
        self.links, self.anchors = [], set()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.add(attributes.get("id"))
        self.links += [v for k, v in attributes.items() if k in ("href", "src") and v]


def test_the_first_page_leads_to_every_chapter_and_notebook(book):
    assert 'url=README.html"' in (book / "index.html").read_text()
    front = (book / "README.html").read_text()
    for chapter in ("use", "api", "command", "how_it_works", "results"):
        assert f'href="softadlib/workbook/pages/book/{chapter}.html"' in front, chapter
    assert 'href="notebooks/README.html"' in front
    assert 'href="CHANGELOG.html"' in front
    assert {p.stem for p in (book / "notebooks").glob("*.html")} == {*NOTEBOOKS, "README"}


def test_the_page_of_commands_has_a_section_for_each(book):
    text = (book / "softadlib/workbook/pages/book/command.html").read_text()
    sections = re.findall(r"<h2>softad (\w+)<", text)
    assert sections == ["run", "draw", "train", "show", "report", "data"]


def test_the_notebooks_stand_in_the_order_of_their_list(book):
    text = (book / "notebooks/README.html").read_text()
    sidebar = text[text.index("bd-docs-nav") :]
    listed = [entry.page for part in read_toc() for entry in part.pages]
    assert [p for p in re.findall(r'href="([\w-]+)\.html"', sidebar) if p in listed][
        : len(listed)
    ] == listed
    for part in read_toc():
        assert f'<span class="caption-text">{part.part}</span>' in sidebar


def test_every_public_name_is_in_the_reference(book):
    text = "".join(path.read_text() for path in (book / API).glob("*.html"))
    found = set(re.findall(r'id="(softadlib\.[\w.]+)"', text))
    wanted = {f"softadlib.{n}" for n in softadlib.__all__ if n not in ("__version__", "functional")}
    wanted |= {f"softadlib.functional.{n}" for n in ("softad", "flooding", "cvar", "rho")}
    wanted |= {f"softadlib.workbook.studies.results.{n}" for n in ("read", "select", "curves")}
    assert wanted <= found


def test_the_reference_shows_how_a_name_is_called(book):
    """Parameters by name; no type that is spelled out over lines."""
    said = {}
    for path in (book / API).glob("*.html"):
        for name, text in re.findall(
            r'<dt class="sig[^"]*" id="([\w.]+)">(.*?)</dt>', path.read_text(), re.S
        ):
            said[name] = html.unescape(re.sub(r"<[^>]+>", "", text))
    for name in softadlib.__all__:
        value = getattr(softadlib, name)
        if callable(value) and not (isinstance(value, type) and issubclass(value, Warning)):
            wanted = [p for p in inspect.signature(value).parameters if p != "args"]
            shown = re.findall(r"(?:[(,]|^)\s*\**(\w+)(?=[:=,)])", said[f"softadlib.{name}"], re.M)
            assert [n for n in shown if n in wanted] == wanted, (name, shown)
            assert "settings" not in shown
    assert [t for t in said.values() if re.search("Annotated|HashedAs|_Buffer", t)] == []
    assert ": tuple[float, ...]" in said["softadlib.workbook.studies.sweep.Sweep.label_noise"]


def test_links_lead_to_files_and_anchors_of_the_book(book):
    parsed = {}
    for page in [*pages(book), "search.html"]:
        parsed[page] = Links()
        parsed[page].feed((book / page).read_text())
    broken = []
    for page, links in parsed.items():
        for link in links.links:
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (book / page).parent / path.partition("?")[0] if path else book / page
            name = target.resolve().relative_to(book.resolve()).as_posix()
            wanted = parsed[name].anchors if anchor and name in parsed else {anchor}
            if not target.exists() or anchor not in wanted:
                broken.append((page, link))
    assert broken == []


def test_nothing_is_loaded_from_the_network(book):
    for page in pages(book):
        text = (book / page).read_text()
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]*)"', text)
        loaded += re.findall(r'<link[^>]*rel="stylesheet"[^>]*href="([^"]*)"', text)
        assert [address for address in loaded if re.match(r"https?:|//", address)] == [], page


def test_the_index_has_the_question_and_the_first_picture_of_every_page(book):
    text = (book / "notebooks/README.html").read_text()
    for entry in (entry for part in read_toc() for entry in part.pages):
        notebook = json.loads((REPOSITORY / f"notebooks/{entry.page}.ipynb").read_text())
        outputs = [o for cell in notebook["cells"] for o in cell.get("outputs", [])]
        has_picture = any("image/png" in output.get("data", {}) for output in outputs)
        card = text[text.index(f'<a href="../notebooks/{entry.page}.html">') :].split("</a>")[0]
        question = "".join(notebook["cells"][0]["source"]).splitlines()[0].removeprefix("# ")
        assert html.escape(question) in card
        assert (f"_static/pages/{entry.page}.png" in card) == has_picture
        assert (book / f"_static/pages/{entry.page}.png").exists() == has_picture
    assert (book / "README.html").read_text().count("_static/pages/") >= 4


def test_pages_lead_to_the_next_question_and_the_footer_names_version_and_licence(book):
    listed = [entry.page for part in read_toc() for entry in part.pages]
    for page, after in itertools.pairwise(listed):
        text = (book / f"notebooks/{page}.html").read_text()
        assert re.search(rf'class="right-next"\s+href="{after}.html"', text), page
        assert f"softadlib {softadlib.__version__}, licence MIT" in text
        assert "Section Navigation" not in text


SHOW_PARAMETERS = ("train", "recipes", "extend")


def test_code_is_folded_where_results_are_read_and_where_the_notebook_hides_it(book):
    for name in NOTEBOOKS:
        notebook = json.loads((REPOSITORY / f"notebooks/{name}.ipynb").read_text())
        code = [c for c in notebook["cells"] if c["cell_type"] == "code" and c["source"]]
        hidden = [
            cell
            for cell in code
            if cell["metadata"].get("jupyter", {}).get("source_hidden")
            or ("parameters" in cell["metadata"].get("tags", []) and name not in SHOW_PARAMETERS)
        ]
        text = (book / f"notebooks/{name}.html").read_text()
        folded = len(re.findall(r'class="cell [^"]*tag_hide-input', text))
        assert folded == len(code if "softad" in notebook["metadata"] else hidden), name


@needs_chromium
def test_one_switch_shows_the_code_of_a_page(book, browser):
    page = browser.new_page()
    page.goto((book / "notebooks/claims.html").as_uri())
    code = page.locator(".cell details.hide .cell_input")
    assert code.count() > 1
    assert not code.first.is_visible()
    page.locator("button.show-code").click()
    assert all(cell.is_visible() for cell in code.all())
    page.locator("button.show-code").click()
    assert not code.first.is_visible()
    page.close()


@needs_chromium
def test_formulas_are_drawn_without_a_network(book, browser):
    page = browser.new_page()
    page.goto((book / "notebooks/temperature.html").as_uri())
    page.wait_for_selector("mjx-container")
    written = page.locator("article .math").count()
    assert page.locator("article .math mjx-container").count() == written > 0
    assert page.locator("mjx-merror").count() == 0
    page.close()


@needs_chromium
@pytest.mark.parametrize("part", ["confidence", "weights", "descent", "cliff"])
def test_a_part_of_the_explorer_stands_alone(browser, part):
    page = browser.new_page(viewport={"width": 358, "height": 800})
    page.goto((BOOK / "explorer.html").as_uri() + f"?part={part}&theta=0.6")
    visible = [s.get_attribute("id") for s in page.locator("section").all() if s.is_visible()]
    assert visible == [f"part-{part}"]
    assert page.locator("#theta + output").inner_text() == "0.6"
    assert page.locator("#step").is_visible() == (part == "descent")
    page.close()


@needs_chromium
def test_a_part_in_a_page_has_its_height_and_the_colours_of_the_page(book, browser):
    """Dark by the switch of the page, where the system is light."""
    page = browser.new_page(viewport={"width": 358, "height": 800}, color_scheme="light")
    page.goto((book / "notebooks/fig12_cliff.html").as_uri())
    frame = page.frames[1]
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    frame.wait_for_function("document.documentElement.style.colorScheme === 'dark'")
    page.wait_for_function(
        "height => document.querySelector('iframe.explorer').clientHeight >= height",
        arg=frame.evaluate("document.body.scrollHeight"),
    )
    assert frame.locator(".key span").all_inner_texts() == ["iFlood", "SoftAD"]
    page.close()


@needs_chromium
def test_the_explorer_asks_for_half_the_logit_at_a_small_theta(explorer):
    """ERM's p = 0.9 becomes the probability of half its logit, 3/4, to the third decimal."""
    assert explorer.evaluate("minimiser('softad', 0.9, 0, 1, 'code')") == pytest.approx(
        0.75, abs=3e-3
    )


@needs_chromium
def test_pages_on_a_telephone(book, browser):
    """No sideways scrolling, no message on the console, a description for every picture."""
    page = browser.new_page(viewport={"width": 390, "height": 800})
    said = []
    page.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    wrong = []
    for name in pages(book):
        page.goto((book / name).as_uri())
        seen = page.evaluate(LOOK)
        if any(seen.values()) or said:
            wrong.append((name, seen, said[:]))
        said.clear()
    page.close()
    assert wrong == []


# The explorer of θ and σ


@pytest.fixture(scope="module")
def explorer(browser):
    """The explorer's page, opened as a file; the test of every function ends with an empty console."""
    said = []
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.on("console", lambda m: said.append(m.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "request",
        lambda r: said.append(r.url) if not r.url.startswith(("file:", "data:")) else None,
    )
    page.goto((BOOK / "explorer.html").as_uri())
    yield page
    assert said == []
    page.close()


LOSSES = [0.0, 0.1, 0.25, 0.7, 1.5, 3.0, 40.0]


@needs_chromium
@pytest.mark.parametrize("scale", ["code", "text"])
@pytest.mark.parametrize(("theta", "sigma"), [(0.25, 1.0), (-0.5, 0.03), (1.0, 10.0)])
def test_the_explorers_criteria_are_the_librarys(explorer, theta, sigma, scale):
    losses = torch.tensor(LOSSES, dtype=torch.float64)
    values = {
        "erm": F.erm(losses, reduction="none"),
        "iflood": F.iflood(losses, theta, reduction="none"),
        "softad": F.softad(losses, theta, sigma, scale=scale, reduction="none"),
    }
    weights = {
        "erm": F.erm_derivative(losses),
        "flooding": F.flooding_derivative(losses, theta),
        "iflood": F.iflood_derivative(losses, theta),
        "softad": F.softad_derivative(losses, theta, sigma, scale),
    }
    given = [LOSSES, theta, sigma, scale]
    for method, wanted in values.items():
        call = f"([l, ...rest]) => l.map(loss => transform({method!r}, loss, ...rest))"
        np.testing.assert_allclose(explorer.evaluate(call, given), wanted, rtol=1e-12)
    for method, wanted in weights.items():
        call = f"given => weights({method!r}, ...given)"
        np.testing.assert_allclose(explorer.evaluate(call, given), wanted, rtol=1e-12)


@needs_chromium
@pytest.mark.parametrize("method", ["erm", "flooding", "softad"])
def test_the_explorers_descent_is_gradient_descent(explorer, method):
    """By automatic differentiation of the library's criteria of f(x) = x²/2 and of ‖w − z‖²/2."""
    criterion = {
        "erm": lambda losses: F.erm(losses),
        "flooding": lambda losses: F.flooding(losses, 0.5),
        "softad": lambda losses: F.softad(losses, 0.5, 0.3),
    }[method]

    def descend(start, losses):
        place = torch.tensor(start, dtype=torch.float64)
        path = [place.tolist()]
        for _ in range(30):
            place = place - 0.2 * torch.func.grad(lambda at: criterion(losses(at)))(place)
            path.append(place.tolist())
        return path

    seen = explorer.evaluate(f"descend({method!r}, 2, 0.5, 0.3, 'code', 0.2, 30)")
    np.testing.assert_allclose(seen, descend(2.0, lambda x: (x**2 / 2)[None]), rtol=1e-9)
    points = torch.tensor(explorer.evaluate("POINTS"), dtype=torch.float64)
    seen = explorer.evaluate(f"walk({method!r}, START, POINTS, 0.5, 0.3, 'code', 0.2, 30)")
    path = descend([-2.2, 1.8], lambda w: (w - points).square().sum(1) / 2)
    np.testing.assert_allclose(seen, path, rtol=1e-9)


@needs_chromium
def test_the_explorers_cliff_is_at_ln_2(explorer):
    """From there on the minimiser of the expected criterion predicts the rarer class."""
    for method in ("iflood", "softad"):
        for theta, is_right in ((0.1, True), (0.69, True), (0.7, False), (1.8, False)):
            seen = explorer.evaluate(f"minimiser({method!r}, 0.8, {theta}, 0.5, 'code')")
            assert (seen > 0.5) == is_right, (method, theta)


@needs_chromium
def test_the_explorers_sliders_redraw_every_picture(explorer):
    draw = "Object.fromEntries([...document.querySelectorAll('.pictures svg')].map(s => [s.id, s.innerHTML]))"
    before = explorer.evaluate(draw)
    assert len(before) == 9
    explorer.locator("#theta").fill("0.9")
    after = explorer.evaluate(draw)
    assert [name for name in before if before[name] == after[name]] == []
    assert explorer.locator("#theta + output").inner_text() == "0.9"
