"""The check of pictures: the same passes on other hardware, a changed one fails."""

import base64
import io
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


def test_nbval_fails_where_the_picture_alone_has_changed(tmp_path):
    """Two cells show a file; stored are its picture and another one."""
    (tmp_path / "drawn.png").write_bytes(drawn())
    cells = []
    for stored in (drawn(), drawn(0.03)):
        data = {"image/png": base64.b64encode(stored).decode(), "text/plain": "<Image>"}
        output = nbformat.v4.new_output("execute_result", data, execution_count=1)
        source = "from IPython.display import Image\nImage('drawn.png')"
        cells.append(nbformat.v4.new_code_cell(source, outputs=[output], execution_count=1))
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
    nbformat.write(notebook, tmp_path / "page.ipynb")
    (tmp_path / "sanitize.cfg").write_text("[image]\nregex: <.*>\nreplace: IMAGE\n")
    options = "-q -p no:cacheprovider -p tests.figures_check -c /dev/null --nbval "
    options += f"--rootdir={tmp_path} --nbval-sanitize-with {tmp_path}/sanitize.cfg"
    command = [sys.executable, "-m", "pytest", *options.split(), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "picture 1 of the cell has changed" in done.stdout
    assert "Cell 1" in done.stdout
