"""The book as its readers see it: built without a warning, read in Chromium at two widths."""

import functools
import http.server
import json
import re
import resource
import shutil
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.workspace import REPOSITORY

import softadlib
from softadlib import functional as F
from softadlib.workbook.toc import read_toc

pytest.importorskip("myst_nb", reason="the book needs the extra `book`")
BOOK = REPOSITORY / "softadlib/workbook/book"
API = "softadlib/workbook/book/api"
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
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert seconds < 60, "of a processor; others use the cores meanwhile"
    return folder


@pytest.fixture(scope="module")
def address(book):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=book)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


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


def test_every_notebook_is_a_page(book):
    assert {p.stem for p in (book / "notebooks").glob("*.html")} == {*NOTEBOOKS, "README"}


CHAPTERS = ("use", "api", "command", "how_it_works", "results")


def test_the_first_page_is_the_readme_and_leads_to_every_chapter(book):
    assert 'url=README.html"' in (book / "index.html").read_text()
    front = (book / "README.html").read_text()
    for chapter in CHAPTERS:
        assert f'href="softadlib/workbook/book/{chapter}.html"' in front, chapter
    assert 'href="notebooks/README.html"' in front
    assert 'href="CHANGELOG.html"' in front


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
    wanted |= {f"softadlib.results.{n}" for n in ("read", "select", "curves")}
    assert wanted <= found


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
        loaded = re.findall(
            r'<(?:script|img|iframe)[^>]*\ssrc="([^"]*)"', (book / page).read_text()
        )
        loaded += re.findall(
            r'<link[^>]*rel="stylesheet"[^>]*href="([^"]*)"', (book / page).read_text()
        )
        assert [a for a in loaded if re.match(r"https?:|//", a)] == [], page


def test_code_is_folded_where_results_are_read_and_open_elsewhere(book):
    for name in NOTEBOOKS:
        notebook = json.loads((REPOSITORY / f"notebooks/{name}.ipynb").read_text())
        code = [c for c in notebook["cells"] if c["cell_type"] == "code" and c["source"]]
        html = (book / f"notebooks/{name}.html").read_text()
        reads = "softad" in notebook["metadata"]
        assert len(re.findall(r'class="cell [^"]*tag_hide-input', html)) == (
            len(code) if reads else 0
        ), name


def test_notebooks_can_be_downloaded(book):
    for name in NOTEBOOKS:
        html = (book / f"notebooks/{name}.html").read_text()
        link = re.search(r'href="([^"]*)" download', html)[1]
        stored = (book / "notebooks" / link).resolve()
        assert json.loads(stored.read_text())["nbformat"] == 4


@needs_chromium
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_in_a_browser(book, address, browser, width):
    """No sideways scrolling, no message on the console, a description for every picture."""
    page = browser.new_page(viewport={"width": width, "height": 800})
    said = []
    page.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    wrong = []
    for name in pages(book):
        page.goto(f"{address}/{name}")
        seen = page.evaluate(LOOK)
        if any(seen.values()) or said:
            wrong.append((name, seen, said[:]))
        said.clear()
    page.close()
    assert wrong == []


@needs_chromium
def test_search_finds_a_method(address, browser):
    page = browser.new_page()
    page.goto(f"{address}/search.html?q=Flooding")
    page.wait_for_selector("#search-results li a")
    links = page.locator("#search-results li a")
    page.wait_for_function("document.querySelectorAll('#search-results li a').length > 3")
    assert any("softadlib.Flooding" in text for text in links.all_inner_texts())
    links.filter(has_text="softadlib.Flooding").first.click()
    page.wait_for_load_state()
    assert "Flooding" in page.locator("article").inner_text()
    page.close()


@needs_chromium
def test_pictures_stand_on_white_in_the_dark(address, browser):
    page = browser.new_page(color_scheme="dark")
    for name in ("README.html", "notebooks/fig02_quadratic_descent.html"):
        page.goto(f"{address}/{name}")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        pictures = page.evaluate(
            """() => [...document.querySelectorAll('article img')].map(image => [
              getComputedStyle(image).backgroundColor, getComputedStyle(image).filter])"""
        )
        assert pictures
        assert set(map(tuple, pictures)) == {("rgb(255, 255, 255)", "none")}
    page.close()


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
    options = {"reduction": "none"}
    values = {
        "erm": F.erm(losses, **options),
        "iflood": F.iflood(losses, theta, **options),
        "softad": F.softad(losses, theta, sigma, scale=scale, **options),
    }
    weights = {
        "erm": F.erm_weights(losses),
        "flooding": F.flooding_weights(losses, theta),
        "iflood": F.iflood_weights(losses, theta),
        "softad": F.softad_weights(losses, theta, sigma, scale),
    }
    argument = [LOSSES, theta, sigma, scale]
    for method, wanted in values.items():
        seen = explorer.evaluate(
            f"([l, ...rest]) => l.map(loss => transform({method!r}, loss, ...rest))", argument
        )
        np.testing.assert_allclose(seen, wanted, rtol=1e-12, err_msg=method)
    for method, wanted in weights.items():
        seen = explorer.evaluate(f"given => weights({method!r}, ...given)", argument)
        np.testing.assert_allclose(seen, wanted, rtol=1e-12, err_msg=method)


@needs_chromium
@pytest.mark.parametrize("method", ["erm", "flooding", "softad"])
def test_the_explorers_descent_is_gradient_descent(explorer, method):
    """By automatic differentiation of the library's criteria of f(x) = x²/2 and of ‖w − z‖²/2."""
    criterion = {
        "erm": lambda losses: F.erm(losses),
        "flooding": lambda losses: F.flooding(losses, 0.5),
        "softad": lambda losses: F.softad(losses, 0.5, 0.3),
    }[method]
    x, path = torch.tensor(2.0, dtype=torch.float64), [2.0]
    for _ in range(30):
        x = x - 0.2 * torch.func.grad(lambda v: criterion((v**2 / 2)[None]))(x)
        path.append(x.item())
    seen = explorer.evaluate(f"descend({method!r}, 2, 0.5, 0.3, 'code', 0.2, 30)")
    np.testing.assert_allclose(seen, path, rtol=1e-9)

    points = torch.tensor(explorer.evaluate("POINTS"), dtype=torch.float64)
    w = torch.tensor([-2.2, 1.8], dtype=torch.float64)
    path = [w.tolist()]
    for _ in range(30):
        w = w - 0.2 * torch.func.grad(lambda v: criterion((v - points).square().sum(1) / 2))(w)
        path.append(w.tolist())
    seen = explorer.evaluate(f"walk({method!r}, START, POINTS, 0.5, 0.3, 'code', 0.2, 30)")
    np.testing.assert_allclose(seen, path, rtol=1e-9)


@needs_chromium
def test_the_explorer_counts_steps_from_above_theta_to_below(explorer):
    assert explorer.evaluate("fallings([3, 1, 3, 2.5, 1, 0, 2], 2)") == 2
    assert explorer.evaluate("fallings([1, 3, 2, 1], 2)") == 0  # by way of θ itself


@needs_chromium
@pytest.mark.parametrize("method", ["iflood", "softad"])
def test_the_explorers_cliff_is_at_ln_2(explorer, method):
    """The minimiser is scipy's, of the expected criterion written with the library."""
    from scipy.optimize import minimize_scalar

    def expected(z, theta):
        losses = torch.nn.functional.softplus(torch.tensor([-z, z], dtype=torch.float64))
        if method == "iflood":
            values = F.iflood(losses, theta, reduction="none")
        else:
            values = F.softad(losses, theta, 0.5, reduction="none")
        return float(values @ torch.tensor([0.8, 0.2], dtype=torch.float64))

    for theta in (0.1, 0.5, 0.69, 0.7, 1.0, 1.8):
        starts = [(-8, 0), (-1, 1), (0, 8)]
        options = {"method": "bounded", "options": {"xatol": 1e-10}}
        found = [minimize_scalar(expected, bounds=b, args=(theta,), **options) for b in starts]
        best = min(found, key=lambda f: f.fun)
        seen = explorer.evaluate(f"minimiser({method!r}, 0.8, {theta}, 0.5, 'code')")
        assert seen == pytest.approx(1 / (1 + np.exp(-best.x)), abs=1e-5), theta
        assert (seen > 0.5) == (theta < np.log(2))


@needs_chromium
def test_the_explorers_sliders_redraw_every_picture(explorer):
    def pictures():
        return explorer.evaluate(
            "Object.fromEntries([...document.querySelectorAll('svg')].map(s => [s.id, s.innerHTML]))"
        )

    def move(name, value):
        explorer.locator(f"#{name}").fill(str(value))

    before = pictures()
    assert len(before) == 8
    move("theta", 0.9)
    assert {k for k, v in pictures().items() if v == before[k]} == set()
    assert explorer.locator("#theta + output").inner_text() == "0.9"
    before = pictures()
    move("step", 0.5)
    assert {k for k, v in pictures().items() if v != before[k]} == {"position", "height", "plane"}
    before = pictures()
    move("sigma", -1)
    assert explorer.locator("#sigma + output").inner_text() == "0.1"
    assert {k for k, v in pictures().items() if v == before[k]} == set()
