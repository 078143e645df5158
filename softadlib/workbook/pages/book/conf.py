"""Sphinx configuration of the book: notebooks as stored, READMEs as chapters, nothing is executed."""

# mypy: ignore-errors
# Sphinx is there only where the extra `book` is installed.

import base64
import html
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from numpy.typing import ArrayLike
from PIL import Image
from sphinx.addnodes import desc_annotation
from sphinx.util.inspect import signature, stringify_signature
from sphinx.util.typing import stringify_annotation

import softadlib
from softadlib.workbook.pages.toc import MARKS, read_toc

# autodoc sets TYPE_CHECKING while it imports, and pydantic then fails on models with extra fields: import them before.
from softadlib.workbook.studies import results  # noqa: F401
from softadlib.workbook.studies.params import parse_yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
SETTINGS = parse_yaml((HERE / "settings.yaml").read_text())

globals().update(SETTINGS)
project, release = PROJECT["name"], PROJECT["version"]
copyright = f"2026, {PROJECT['authors'][0]['name']}"
html_theme_options["icon_links"] = [  # noqa: F821  # of the settings
    {"name": "Repository", "url": REPOSITORY, "icon": "fa-solid fa-code-branch"}
]
# Folders without a page: without this line Sphinx would walk the virtual environment.
WITH_PAGES = {"notebooks", "params", "softadlib", "outputs"}
exclude_patterns = [p.name for p in ROOT.iterdir() if p.is_dir() and p.name not in WITH_PAGES]
exclude_patterns += ["outputs/book", "outputs/*/*/*", "**/.*", "**/chapters.md"]

OPEN = ("train", "recipes", "extend")
"""Pages whose code is what they show."""
FRONT = {
    "tab1_3_loss_gaps": (
        "Does it hold?",
        "The paper's tables and claims, with its data and seeds.",
    ),
    "temperature": ("Why?", "A network comes out as if its logits were divided by two."),
    "rivals": ("Should I use it?", "Beside early stopping, one temperature, SAM and others."),
    "extend": ("Add yours", "A method is a function; data are a CSV file or a folder."),
}
"""Pages on the cards of the first page: question and words."""
EXPLORED = {
    "temperature": "part=confidence&theta=0.01",
    "fig01_quadratic_gradients": "part=weights&theta=0.25",
    "fig02_quadratic_descent": "part=descent&theta=0.25",
    "fig12_cliff": "part=cliff&theta=0.6",
}
"""Page → the part of the explorer that stands in it, and what it starts with."""


def cells(page: str) -> list[dict]:
    """Return the cells of a notebook as it is stored."""
    return json.loads((ROOT / f"notebooks/{page}.ipynb").read_text())["cells"]


def pictures(cell: dict) -> list[str]:
    """Return the pictures of a cell's outputs, base64."""
    found = [output.get("data", {}).get("image/png") for output in cell.get("outputs", [])]
    return ["".join(picture) for picture in found if picture]


def title(page: str) -> str:
    """Return a page's title."""
    return re.search(r"^# +(.*)$", "".join(cells(page)[0]["source"]), re.M)[1]


def write_thumbnails(app, error) -> None:
    """Write the first picture of every page that has one, small, for the cards."""
    folder = Path(app.outdir) / "_static/pages"
    folder.mkdir(parents=True, exist_ok=True)
    for page in (entry.page for part in read_toc() for entry in part.pages):
        if first := [picture for cell in cells(page) for picture in pictures(cell)][:1]:
            image = Image.open(io.BytesIO(base64.b64decode(first[0]))).convert("RGB")
            image.thumbnail((480, 2000))
            image.crop((0, 0, image.width, min(300, image.height))).save(
                folder / f"{page}.png", optimize=True
            )


def card(page: str, question: str, words: str, root: str = "../") -> str:
    """Return a link to a page with its first picture, a question and an answer, as HTML."""
    has_picture = any(pictures(cell) for cell in cells(page))
    source = f"{root}_static/pages/{page}.png"
    picture = f'<img src="{source}" alt="First picture of {page}">' if has_picture else "<i></i>"
    text = re.sub(r"`(.+?)`", r"<code>\1</code>", html.escape(words[0].upper() + words[1:]))
    address = f"{root}notebooks/{page}.html"
    return f'<a href="{address}">{picture}<strong>{html.escape(question)}</strong> {text}</a>'


def cards(links: list[str]) -> str:
    """Return cards side by side, as Markdown."""
    return '```{raw} html\n<div class="cards">' + "\n".join(links) + "</div>\n```\n"


def contents() -> str:
    """Return for each part of the list its cards, and a table of contents that the sidebar shows."""
    parts = []
    for part in read_toc():
        pages = "\n".join(f"/notebooks/{entry.page}" for entry in part.pages)
        shown = cards([card(e.page, title(e.page), e.answer) for e in part.pages])
        toctree = f"```{{toctree}}\n:hidden:\n:caption: {part.part}\n\n{pages}\n```\n"
        parts.append(f"## {part.part}\n\n{shown}\n{toctree}")
    return "\n".join(parts)


def names() -> str:
    """Return a table of the public names, SoftAD and SAM first, with the first line of each."""
    rest = [name for name in softadlib.__all__ if name[0] != "_" and name != "functional"]
    order = ["SoftAD", "SAM", *sorted({*rest} - {"SoftAD", "SAM"}, key=str.lower)]
    lines = ["| name | what it is |", "| :-- | :-- |"]
    for name in order:
        first = inspect.getdoc(getattr(softadlib, name)).splitlines()[0].replace("|", "\\|")
        lines.append(f"| {{py:obj}}`~softadlib.{name}` | {first} |")
    return "\n".join(lines)


def commands() -> str:
    """Return what `softad` and each of its commands say when asked for help."""
    environment = os.environ | {"COLUMNS": "72", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}

    def ask(*words: str) -> str:
        command = [sys.executable, "-m", "softadlib", *words, "--help"]
        return subprocess.check_output(command, text=True, env=environment)

    top = ask()
    names = re.findall(r"^ {2}([a-z][\w-]*)(?= {2,})", top, re.M)
    pages = [("softad", top), *((f"softad {name}", ask(name)) for name in names)]
    return "\n".join(f"## {name}\n\n```text\n{said}```\n" for name, said in pages)


def fill(_app, docname: str, source: list[str]) -> None:
    """Write lists of pages and commands into chapters; describe the pictures of notebooks."""
    if docname == "notebooks/README":
        head, rest = source[0].split(MARKS[0])
        source[0] = head + contents() + rest.split(MARKS[1])[1]
    elif docname.startswith("notebooks/"):
        source[0] = notebook(docname.partition("/")[2], source[0])
    elif docname == SETTINGS["root_doc"]:
        first = cards([card(page, *words, root="") for page, words in FRONT.items()])
        head, rest = source[0].split("\n", 1)
        source[0] = f"{head}\n\n{first}{rest}\n" + (HERE / "chapters.md").read_text()
    elif docname.endswith("book/api"):
        source[0] = source[0].replace("<!-- names -->", names())
    elif "book/api/" in docname:  # a title breaks after a dot
        source[0] = re.sub(
            r"(?m)^#+ .*", lambda m: m[0].replace(".", ".\N{ZERO WIDTH SPACE}"), source[0]
        )
    source[0] = source[0].replace("<!-- commands -->", commands() if "command" in docname else "")
    if not docname.startswith("notebooks/") or docname == "notebooks/README":
        source[0] = re.sub(r"(\d) %", "\\1\N{NO-BREAK SPACE}%", source[0])
    # What is about the repository is read there.
    source[0] = re.sub(r"\]\((\.\./)*\.github/", f"]({REPOSITORY}/blob/main/.github/", source[0])


def notebook(page: str, text: str) -> str:
    """Describe every picture by the page's title, and fold code.

    On a page that reads results, all code is folded. On other pages, code that is hidden in JupyterLab
    is folded, and so is the cell of parameters, except on the pages of `OPEN`.
    """
    document = json.loads(text)
    number = 0
    described = title(page)
    shown = []
    for cell in document["cells"]:
        shown.append(cell)
        tags = cell["metadata"].setdefault("tags", [])
        hidden = cell["metadata"].get("jupyter", {}).get("source_hidden", False)
        hidden |= "parameters" in tags and page not in OPEN
        if cell["cell_type"] == "code" and (hidden or "softad" in document["metadata"]):
            tags.append("hide-input")
        if pictures(cell):
            number += 1
            cell["metadata"]["mystnb"] = {"image": {"alt": f"{described}, picture {number}"}}
            if number == 1 and page in EXPLORED:
                shown.append(explorer(EXPLORED[page]))
    document["cells"] = shown
    document["metadata"].pop("widgets", None)
    return json.dumps(document)


def explorer(query: str) -> dict:
    """Return a cell that holds a part of the explorer."""
    source = f"../explorer.html?{query}"
    frame = f'<iframe class="explorer" src="{source}" title="Sliders for theta and sigma"></iframe>'
    return {"cell_type": "markdown", "id": "explorer", "metadata": {}, "source": frame}


def escape(_app, what: str, _name: str, _value, _options, lines: list[str]) -> None:
    """Keep |x| and *x in docstrings from being markup, but for examples and code."""
    parts = re.split(r"(>{3} .*?(?:\n *\n|\Z)|`+[^`]*`+)", "\n".join(lines), flags=re.S)
    parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
    lines[:] = "".join(parts).split("\n")
    if what in ("attribute", "data", "property"):
        lines.insert(0, "\\")  # else napoleon takes what stands before a colon for a type


def sign(_app, what: str, _name, value, _options, shown: str | None, returned: str | None):
    """Show a class as it is called, and names of types that autodoc spells out."""
    if what == "class" and issubclass(value, softadlib.Criterion):
        shown = stringify_signature(signature(value), unqualified_typehints=True)
    elif hasattr(value, "model_fields"):
        shown = "(**fields)"  # each is described below
    return shown and shown.replace(stringify_annotation(ArrayLike, "smart"), "ArrayLike"), returned


def name_types(_app, doctree) -> None:
    """Keep the type alone of a field of pydantic: its bounds are in its description."""
    for node in list(doctree.findall(desc_annotation)):
        shown = re.sub(r"Annotated\[(\w+), .*?\]\)\]", r"\1", node.astext())
        if rest := re.search(r"Annotated\[(\w+)|HashedAs", shown):
            shown = f": {rest[1]}" if rest[1] else ""
        if shown != node.astext():
            node.parent.replace(node, desc_annotation("", shown) if shown else [])


def setup(app) -> dict[str, bool]:
    """Connect the functions above."""
    app.config.mathjax_path = "mathjax/tex-svg.js"  # outlines in place of fonts, also from a file
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", escape, priority=400)
    app.connect("autodoc-process-signature", sign)
    app.connect("doctree-read", name_types)
    app.connect("build-finished", write_thumbnails)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
