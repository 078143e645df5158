"""A page in JupyterLab as a person has it: opened in a browser, Run All Cells."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from helpers.workspace import make_home, write_notebook

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
    # playwright leaves its event loop's socket to the collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
PAGE = "fig01_quadratic_gradients"
PATIENCE = 120_000
"""Milliseconds; a busy machine takes a minute to start a kernel."""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A workbook with a page without outputs, so that what is seen was made here, and one that fails."""
    home = make_home(tmp_path_factory.mktemp("lab"), (PAGE,))
    path = home / "notebooks" / f"{PAGE}.ipynb"
    notebook = json.loads(path.read_text())
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    path.write_text(json.dumps(notebook))
    write_notebook(home / "notebooks/broken.ipynb", "1 / 0")
    return home


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as play:
        options = ["--no-sandbox", "--disable-gpu"]  # root in a container may have no sandbox
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=options)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def lab(home):
    """The address of a JupyterLab of our own, which ends with the tests."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = home / ".jupyter"
    (folder / "CONFIG/labconfig").mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    settings = json.dumps({"@jupyterlab/apputils-extension:notification": quiet})
    (folder / "CONFIG/labconfig/default_setting_overrides.json").write_text(settings)
    env = {f"JUPYTER_{kind}_DIR": str(folder / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    command += ["--ServerApp.port_retries=0", "--IdentityProvider.token=", f"--notebook-dir={home}"]
    with open(home / "lab.log", "wb") as log:
        env = os.environ | env | {"SOFTAD_HOME": str(home)}
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + PATIENCE / 1000
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/api", timeout=5).close()
            break
        except OSError:
            assert server.poll() is None, (home / "lab.log").read_text()[-2000:]
            time.sleep(0.5)
    yield url
    server.terminate()
    server.wait(60)


def run_all(browser, lab, name):
    """Open a page in JupyterLab and run all its cells; return the tab."""
    tab = browser.new_page(viewport={"width": 1300, "height": 1800})
    tab.set_default_timeout(PATIENCE)
    tab.goto(f"{lab}/lab/tree/notebooks/{name}.ipynb?reset")
    tab.wait_for_selector(".jp-Notebook .jp-CodeCell")
    assert tab.locator(".jp-OutputArea-output").count() == 0
    tab.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    tab.get_by_role("menuitem", name="Run", exact=True).click()
    tab.get_by_text("Run All Cells", exact=True).click()
    return tab


def errors(tab):
    """Return what cells wrote to stderr, and the outputs of cells that failed."""
    kinds = ("application/vnd.jupyter.stderr", "application/vnd.jupyter.error")
    return [
        text
        for kind in kinds
        for text in tab.locator(f'[data-mime-type="{kind}"]').all_inner_texts()
    ]


def test_run_all_draws_the_page(browser, lab, home):
    cells = json.loads((home / "notebooks" / f"{PAGE}.ipynb").read_text())["cells"]
    tab = run_all(browser, lab, PAGE)
    last = sum(cell["cell_type"] == "code" for cell in cells)
    tab.locator(".jp-InputPrompt", has_text=f"[{last}]:").wait_for(state="attached")
    tab.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    picture = tab.locator(".jp-OutputArea-output img").first
    picture.scroll_into_view_if_needed()
    picture.evaluate("e => e.decode()")
    assert picture.evaluate("e => Math.min(e.naturalWidth, e.naturalHeight)") > 200
    assert errors(tab) == []
    tab.close()


def test_a_cell_that_fails_is_seen(browser, lab):
    """Else the test before would pass whatever happens."""
    tab = run_all(browser, lab, "broken")
    tab.get_by_text("ZeroDivisionError").first.wait_for()
    assert errors(tab)
    tab.close()
