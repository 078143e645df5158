"""The check of pictures: the same passes on other hardware, a changed one fails."""

import base64
import io
import json
import subprocess
import sys

import matplotlib as mpl
import nbformat
import numpy as np
import pytest
from figures_check import difference
from helpers.workspace import REPOSITORY
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image


def drawn(shift=0.0, *, title="loss", noise=0.0, marker="o", last=None):
    """A figure such as our pages have, at 200 dpi; `shift` moves one of its lines."""
    with mpl.rc_context({"figure.constrained_layout.use": True}):
        fig = Figure(figsize=(4, 3), dpi=200)
        FigureCanvasAgg(fig)
        ax = fig.subplots()
        x = np.linspace(0, 1, 20)
        ax.plot(x, x**2, marker + "-")
        y = 1 - x + shift
        if last is not None:
            y[-1] = last
        ax.plot(x, y, "s--")
        ax.set(xlabel="epoch", title=title, ylim=(-0.1, 1.2))
        fig.canvas.draw()
        pixels = np.asarray(fig.canvas.buffer_rgba()).astype(float)
    draws = np.random.default_rng(0).normal(0, noise, pixels.shape)
    noisy, buffer = np.clip(pixels + draws, 0, 255).astype(np.uint8), io.BytesIO()
    Image.fromarray(noisy).convert("RGB").save(buffer, "png")
    return buffer.getvalue()


def test_the_same_picture_and_its_noise_pass():
    assert difference(drawn(), drawn()) == ""
    assert difference(drawn(), drawn(noise=12)) == ""
    assert difference(drawn(), drawn(0.001)) == "", "a shift of less than a pixel"


@pytest.mark.parametrize(
    "changed", [{"shift": 0.03}, {"last": 0.2}, {"title": "gap"}, {"marker": ""}], ids=str
)
def test_a_moved_line_a_moved_point_another_title_or_marker_fail(changed):
    assert "cells differ, most" in difference(drawn(), drawn(**changed))


def test_another_size_fails():
    small = Figure(figsize=(2, 2), dpi=100)
    buffer = io.BytesIO()
    small.savefig(buffer)
    assert "its size is (200, 200)" in difference(drawn(), buffer.getvalue())


def run_nbval(folder, cells, *options):
    """Run nbval with this plugin on a notebook of these cells; return what it prints."""
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), folder / "page.ipynb")
    (folder / "sanitize.cfg").write_text("[image]\nregex: <.*>\nreplace: IMAGE\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "tests.figures_check", "-c", "/dev/null", "--nbval", f"--rootdir={folder}"]
    command += ["--nbval-sanitize-with", f"{folder}/sanitize.cfg", *options, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    return done.stdout + done.stderr


def test_nbval_fails_where_the_picture_alone_has_changed(tmp_path):
    """Two cells show a file; stored are its picture and another one."""
    (tmp_path / "drawn.png").write_bytes(drawn())
    cells = []
    for stored in (drawn(), drawn(0.03)):
        data = {"image/png": base64.b64encode(stored).decode(), "text/plain": "<Image>"}
        output = nbformat.v4.new_output("execute_result", data, execution_count=1)
        source = "from IPython.display import Image\nImage('drawn.png')"
        cells.append(nbformat.v4.new_code_cell(source, outputs=[output], execution_count=1))
    said = run_nbval(tmp_path, cells)
    assert "1 failed, 1 passed" in said
    assert "picture 1 of the cell has changed" in said
    assert "Cell 1" in said


@pytest.mark.parametrize(("silent", "ended"), [(1, "3 passed"), (2, "1 failed")])
def test_a_notebook_whose_kernel_does_not_answer_is_run_a_second_time(tmp_path, silent, ended):
    """The second cell ends its kernel's answers, once or always; the third needs the first."""
    sources = [
        "count = 0",
        "import pathlib, time\n"
        "tries = pathlib.Path('tries')\n"
        "with tries.open('a') as file: _ = file.write('x')\n"
        "while len(tries.read_text()) <= SILENT: time.sleep(1)".replace("SILENT", str(silent)),
        "print(count)",
    ]
    output = nbformat.v4.new_output("stream", name="stdout", text="0\n")
    cells = [nbformat.v4.new_code_cell(source, execution_count=1) for source in sources]
    cells[-1].outputs = [output]
    said = run_nbval(tmp_path, cells, "--nbval-cell-timeout", "3")
    assert ended in said
    assert len((tmp_path / "tries").read_text()) == 2


def test_a_notebook_whose_kernel_does_not_start_is_run_a_second_time(tmp_path, monkeypatch):
    """As where another process has taken its port."""
    started = tmp_path / "started"
    launch = f"{sys.executable} -m ipykernel_launcher -f $0"
    script = f"test -e {started} && exec {launch}; touch {started}; exit 1"
    spec = {
        "argv": ["sh", "-c", script, "{connection_file}"],
        "display_name": "",
        "language": "python",
    }
    (tmp_path / "kernels/python3").mkdir(parents=True)
    (tmp_path / "kernels/python3/kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    cells = [nbformat.v4.new_code_cell(source) for source in ("count = 0", "assert count == 0")]
    assert "2 passed" in run_nbval(tmp_path, cells)
    assert started.exists()
