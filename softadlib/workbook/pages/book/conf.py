"""Sphinx configuration of the book: notebooks as stored, READMEs as chapters, nothing is executed."""

# mypy: ignore-errors
# Sphinx, docutils and latex2mathml are there only where the extra `book` is installed.

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert

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


def contents() -> str:
    """Return a table of contents for each part of the list of pages; the sidebar shows them."""
    tables = []
    for part in read_toc():
        pages = "\n".join(f"/notebooks/{entry.page}" for entry in part.pages)
        tables.append(f"```{{toctree}}\n:hidden:\n:caption: {part.part}\n\n{pages}\n```\n")
    return "\n".join(tables)


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
        source[0] = source[0].replace(MARKS[1], contents())
    elif docname.startswith("notebooks/"):
        source[0] = notebook(docname.partition("/")[2], source[0])
    elif docname == SETTINGS["root_doc"]:
        source[0] += "\n" + (HERE / "chapters.md").read_text()
    source[0] = source[0].replace("<!-- commands -->", commands() if "command" in docname else "")
    # What is about the repository is read there.
    source[0] = re.sub(r"\]\((\.\./)*\.github/", f"]({REPOSITORY}/blob/main/.github/", source[0])


def notebook(page: str, text: str) -> str:
    """Describe every picture by the page's title, and fold code.

    On a page that reads results, all code is folded. On other pages, code that is hidden in JupyterLab
    is folded, and so is the cell of parameters, except on the pages of `OPEN`.
    """
    document = json.loads(text)
    title = re.search(r"^# +(.*)$", "".join(document["cells"][0]["source"]), re.M)[1]
    number = 0
    for cell in document["cells"]:
        tags = cell["metadata"].setdefault("tags", [])
        hidden = cell["metadata"].get("jupyter", {}).get("source_hidden", False)
        hidden |= "parameters" in tags and page not in OPEN
        if cell["cell_type"] == "code" and (hidden or "softad" in document["metadata"]):
            tags.append("hide-input")
        if any("image/png" in output.get("data", {}) for output in cell.get("outputs", [])):
            number += 1
            cell["metadata"]["mystnb"] = {"image": {"alt": f"{title}, picture {number}"}}
    document["metadata"].pop("widgets", None)
    return json.dumps(document)


def escape(_app, what: str, _name: str, _value, _options, lines: list[str]) -> None:
    """Keep |x| and *x in docstrings from being markup, but for examples and code."""
    parts = re.split(r"(>{3} .*?(?:\n *\n|\Z)|`+[^`]*`+)", "\n".join(lines), flags=re.S)
    parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
    lines[:] = "".join(parts).split("\n")
    if what == "attribute":
        lines.insert(0, "\\")  # else napoleon takes what stands before a colon for a type


def visit_math(self, node) -> None:
    """Write a formula as MathML, which browsers draw without a script."""
    displayed = isinstance(node, nodes.math_block)
    formula = convert(node.astext(), display="block" if displayed else "inline")
    self.body.append(f'<div class="formula">{formula}</div>' if displayed else formula)
    raise nodes.SkipNode


def setup(app) -> dict[str, bool]:
    """Connect the functions above."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", escape, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
