"""Execute the committed notebooks with their defaults and store the outputs: `make record`.

python tests/record_notebooks.py [notebooks/NAME.ipynb …]
"""

import base64
import io
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
KEPT = ("language_info", "softad")
"""Metadata beside the kernel's: its language as JupyterLab saves it, and whose results the page draws."""
WIDGET = "application/vnd.jupyter.widget-view+json"


def smaller(png: str) -> str:
    """Store a picture in 256 colours: a third of the bytes, and the eye sees no difference."""
    picture, content = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB"), io.BytesIO()
    few = picture.quantize(256, dither=Image.Dither.NONE)
    few.save(content, "png", optimize=True)
    return base64.b64encode(content.getvalue()).decode()


def record(path: Path) -> None:
    """Run in the notebook's folder, as nbval does, and keep nothing but what the cells printed."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER)}},
        coalesce_streams=True,  # what one cell prints is one output, however it arrived
    ).execute()
    kept = {name: notebook["metadata"][name] for name in KEPT if name in notebook["metadata"]}
    notebook["metadata"] = {"kernelspec": KERNEL, **kept}
    for cell in notebook["cells"]:
        kept = {name: cell["metadata"].get(name) for name in ("tags", "jupyter")}
        cell["metadata"] = {name: value for name, value in kept.items() if value}
        if "outputs" in cell:  # a control is dead without its kernel
            cell["outputs"] = [o for o in cell["outputs"] if WIDGET not in o.get("data", {})]
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                data["image/png"] = smaller(data["image/png"])
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(FOLDER.glob("*.ipynb")):
        print(name, flush=True)
        record(Path(name).resolve())
