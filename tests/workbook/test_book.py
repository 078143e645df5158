"""The book as its readers see it: built without a warning, read in Chromium at two widths."""

import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.workspace import REPOSITORY

import softadlib
from softadlib import functional as F

pytest.importorskip("myst_nb", reason="the book needs the extra `book`")
BOOK = REPOSITORY / "softadlib/workbook/book"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NOTEBOOKS = sorted(path.stem for path in (REPOSITORY / "notebooks").glob("*.ipynb"))
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    folder = tmp_path_factory.mktemp("book")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", BOOK, ".", folder]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 120  # twice what is promised: tests share the cores
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
    left_out = {"search.html"}
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


def test_the_front_page_is_the_readme_and_leads_to_every_chapter(book):
    front = (book / "index.html").read_text()
    assert "SoftAD replaces cross-entropy in one line" in front
    for chapter in ("paper", "beyond", "use", "api", "command", "how_it_works", "results"):
        assert f'href="{chapter}.html"' in front, chapter
    assert 'href="CHANGELOG.html"' in front


def test_every_public_name_is_in_the_reference(book):
    text = "".join(path.read_text() for path in (book / "api").glob("*.html"))
    found = set(re.findall(r'id="(softadlib\.[\w.]+)"', text))
    wanted = {f"softadlib.{n}" for n in softadlib.__all__ if n not in ("__version__", "functional")}
    wanted |= {f"softadlib.functional.{n}" for n in ("softad", "flooding", "cvar", "rho")}
    wanted |= {f"softadlib.results.{n}" for n in ("read", "select", "curves")}
    assert wanted <= found


def test_every_formula_belongs_to_a_name(book):
    import yaml

    text = "".join(path.read_text() for path in (book / "api").glob("*.html"))
    for name in yaml.safe_load((BOOK / "equations.yaml").read_text()):
        section = re.search(rf'id="softadlib\.{re.escape(name)}".*?</dd></dl>', text, re.S)
        assert section, name
        assert "<math" in section[0], name


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
            if not target.exists():
                broken.append((page, link))
            elif anchor and name in parsed and anchor not in parsed[name].anchors:
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
        text = "\n".join("".join(cell["source"]) for cell in code)
        html = (book / f"notebooks/{name}.html").read_text()
        reads = "softadlib.results" in text or "softadlib import results" in text
        assert len(re.findall(r'class="cell [^"]*tag_hide-input', html)) == (len(code) if reads else 0), name


def test_notebooks_can_be_downloaded_and_some_opened_in_colab(book):
    import tomllib

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    repository = project["urls"]["Repository"].removeprefix("https://github.com/")
    for name in NOTEBOOKS:
        html = (book / f"notebooks/{name}.html").read_text()
        link = re.search(r'href="([^"]*)" download', html)[1]
        stored = (book / "notebooks" / link).resolve()
        assert json.loads(stored.read_text())["nbformat"] == 4
        if "colab.research" in html:
            assert f"/github/{repository}/blob/main/notebooks/{name}.ipynb" in html
            code = stored.read_text()
            assert "pandas" not in re.findall(r"(?:import|from) (\w+)", code)


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
    links.first.click()
    page.wait_for_load_state()
    assert "Flooding" in page.locator("article").inner_text()
    page.close()


@needs_chromium
def test_pictures_stand_on_white_in_the_dark(address, browser):
    page = browser.new_page(color_scheme="dark")
    for name in ("index.html", "notebooks/fig02_quadratic_descent.html"):
        page.goto(f"{address}/{name}")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        pictures = page.evaluate(
            """() => [...document.querySelectorAll('article img')].map(image => [
              getComputedStyle(image).backgroundColor, getComputedStyle(image).filter])"""
        )
        assert pictures
        assert set(map(tuple, pictures)) == {("rgb(255, 255, 255)", "none")}
    page.close()
