"""JupyterLab and the report as a person has them: in a browser. Debian's Chromium, driven by playwright."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

import pytest
from helpers.workspace import REPOSITORY, make_home, write_notebook

from softadlib.workbook import cli

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
    # playwright leaves its event loop's socket to the collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
NOTEBOOKS = ("beyond_rho", "beyond_explorer")
REPORTED = ("beyond_rho", "fig01_quadratic_gradients", "tab1_3_loss_gaps")
FOLD = "document.querySelector('details.chapter').getBoundingClientRect().top + scrollY"
SECONDS = 120  # of patience; a minute of it is a busy machine starting a kernel


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A workbook of notebooks without outputs: what is seen later was made here."""
    home = make_home(tmp_path_factory.mktemp("lab"), NOTEBOOKS)
    for path in (home / "notebooks").glob("*.ipynb"):
        notebook = json.loads(path.read_text())
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell.update(outputs=[], execution_count=None)
        path.write_text(json.dumps(notebook))
    return home


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as play:
        # root in a container may not have a sandbox
        chromium = play.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def lab(home):
    """The address of a JupyterLab of our own, which ends with the tests."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = home / ".jupyter"
    (folder / "CONFIG" / "labconfig").mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (folder / "CONFIG" / "labconfig" / "default_setting_overrides.json").write_text(
        json.dumps({"@jupyterlab/apputils-extension:notification": quiet})
    )
    settings = {f"JUPYTER_{kind}_DIR": str(folder / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}",
               "--ServerApp.port_retries=0", "--IdentityProvider.token=", f"--notebook-dir={home}"]  # fmt: skip
    env = {**os.environ, **settings, "SOFTAD_HOME": str(home), "OMP_NUM_THREADS": "1"}
    with open(home / "lab.log", "wb") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    for _ in range(2 * SECONDS):
        try:
            urllib.request.urlopen(f"{url}/api", timeout=5).close()
            break
        except OSError:
            assert server.poll() is None, (home / "lab.log").read_text()[-2000:]
            time.sleep(0.5)
    yield url
    server.terminate()
    server.wait(60)


def run_all(browser, lab, home, name):
    """Open a notebook in JupyterLab, Run All, wait for the last cell; returns the page."""
    page = browser.new_page(viewport={"width": 1300, "height": 1800})
    page.set_default_timeout(1000 * SECONDS)
    page.goto(f"{lab}/lab/tree/notebooks/{name}.ipynb?reset")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    assert page.locator(".jp-OutputArea-output").count() == 0
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    cells = json.loads((home / "notebooks" / f"{name}.ipynb").read_text())["cells"]
    last = sum(cell["cell_type"] == "code" for cell in cells)
    page.locator(".jp-InputPrompt", has_text=f"[{last}]:").wait_for(state="attached")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    return page


def look(page, name):
    """Leave a picture of the page where $SOFTAD_SCREENSHOTS says."""
    if where := os.environ.get("SOFTAD_SCREENSHOTS"):
        page.screenshot(path=f"{where}/{name}.png")


def no_errors(page):
    wrong = page.locator('[data-mime-type="application/vnd.jupyter.stderr"]')
    assert wrong.all_inner_texts() == []
    assert page.locator('[data-mime-type="application/vnd.jupyter.error"]').count() == 0


def size_of(picture):
    """Width and height of an <img> as decoded; 0, 0 where it is broken."""
    picture.scroll_into_view_if_needed()
    picture.evaluate("e => e.decode()")
    return picture.evaluate("e => [e.naturalWidth, e.naturalHeight]")


def test_run_all_in_jupyterlab_draws_the_figure(browser, lab, home):
    page = run_all(browser, lab, home, "beyond_rho")
    figure = page.locator(".jp-OutputArea-output img").first
    assert min(size_of(figure)) > 200
    no_errors(page)
    look(page, "lab")
    page.close()


def test_a_cell_that_fails_is_seen(browser, lab, home):
    """What the tests beside this one call no error would show one."""
    write_notebook(home / "notebooks" / "broken.ipynb", "1 / 0")
    page = browser.new_page()
    page.goto(f"{lab}/lab/tree/notebooks/broken.ipynb?reset")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=1000 * SECONDS)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    page.get_by_text("ZeroDivisionError").first.wait_for(timeout=1000 * SECONDS)
    with pytest.raises(AssertionError):
        no_errors(page)
    page.close()


def test_the_explorers_slider_changes_its_picture(browser, lab, home):
    page = run_all(browser, lab, home, "beyond_explorer")
    picture = page.locator(".jp-OutputArea-output img.widget-image").first
    assert min(size_of(picture)) > 200
    before = picture.get_attribute("src")
    handle = page.locator(".widget-slider .noUi-handle").first
    number = page.locator(".widget-slider .widget-readout").first
    at = float(number.inner_text())
    handle.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert float(number.inner_text()) > at
    page.wait_for_function(
        "([old, k]) => document.querySelectorAll('img.widget-image')[k].src != old", arg=[before, 0]
    )
    after = page.locator(".jp-OutputArea-output img.widget-image").first
    assert min(size_of(after)) > 200
    no_errors(page)
    look(page, "beyond_explorer")
    page.close()


def live_view(path):
    """Store the notebook as the explorer is stored: beside each picture a view that needs a kernel."""
    notebook = json.loads(path.read_text())
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                view = {"model_id": "a" * 32, "version_major": 2, "version_minor": 0}
                output["data"]["application/vnd.jupyter.widget-view+json"] = view
    state = {"version_major": 2, "version_minor": 0, "state": {}}
    notebook["metadata"]["widgets"] = {"application/vnd.jupyter.widget-state+json": state}
    path.write_text(json.dumps(notebook))


def test_every_link_and_picture_of_the_report_is_there(browser, tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(make_home(tmp_path, REPORTED)))
    assert cli.main(["train", "tiny", "-j", "1"]) == 0
    figures = tmp_path / "outputs" / "figures"
    figures.mkdir()
    (tmp_path / "outputs" / "tiny" / "figures").mkdir()
    for name in REPORTED:  # as recorded: executing them is another test's work
        shutil.copy(REPOSITORY / "notebooks" / f"{name}.ipynb", figures)
    live_view(figures / "fig01_quadratic_gradients.ipynb")
    assert cli.main(["report", "tiny"]) == 0
    page, asked, said = browser.new_page(viewport={"width": 1200, "height": 900}), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    address = (tmp_path / "outputs" / "tiny" / "index.html").as_uri()
    page.goto(address)
    assert page.locator("details.chapter").count() >= 2
    assert page.evaluate(FOLD) <= 12 * 900, "screens before what is folded"
    assert page.locator("main img").first.bounding_box()["y"] < 900, "a picture on the first screen"
    identifiers = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(identifiers) == len(set(identifiers))
    alts = page.evaluate("[...document.images].map(e => e.alt)")
    assert all(len(alt) > 5 for alt in alts)
    assert not any("No description" in alt for alt in alts)
    page.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
    links = page.locator("a[href]").all()
    assert len(links) >= len(REPORTED)
    for link in links:
        target = link.get_attribute("href")
        if target.startswith("#"):
            assert page.locator(f'[id="{target[1:]}"]').count() == 1, target
        else:
            path = urllib.request.url2pathname(urljoin(address, target).removeprefix("file://"))
            assert Path(path).exists(), target
    drawn = sum((figures / f"{n}.ipynb").read_text().count('"image/png"') for n in REPORTED)
    pictures = page.locator("main img").all()
    assert len(pictures) == drawn + 1, "the notebooks', and one of the only dataset"
    assert all(min(size_of(picture)) > 100 for picture in pictures)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
        "wider than the window"
    )
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "on a telephone"
    page.evaluate("document.querySelectorAll('details').forEach(e => e.open = false)")
    assert page.evaluate(FOLD) <= 12 * 800
    assert page.locator("script").count() == 0
    assert said == []
    assert {u.split("#")[0] for u in asked if not u.startswith("data:")} == {address}
    look(page, "report")
    page.close()
