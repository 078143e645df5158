"""Sphinx configuration of the book: notebooks as stored, READMEs as chapters, nothing is executed."""

# mypy: ignore-errors
# Sphinx, docutils and latex2mathml are there only where the extra `book` is installed.

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder

import softadlib

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CHAPTERS = HERE.relative_to(ROOT).as_posix() + "/"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
PACKAGES = {path.stem for path in (HERE / "api").glob("*.md")}
SETTINGS = yaml.safe_load((HERE / "settings.yaml").read_text())
EQUATIONS = yaml.safe_load((HERE / "equations.yaml").read_text())

globals().update(SETTINGS | {"project": PROJECT["name"], "release": PROJECT["version"]})
author = ", ".join(person["name"] for person in PROJECT["authors"])
# Folders without a page: without this line Sphinx would walk the virtual environment.
WITH_PAGES = {".github", "notebooks", "params", "softadlib", "outputs"}
exclude_patterns = [p.name for p in ROOT.iterdir() if p.is_dir() and p.name not in WITH_PAGES]
exclude_patterns += ["outputs/book", "outputs/*/*/*", "**/.*", f"{CHAPTERS}chapters.md"]

repository = {"name": "Repository", "url": REPOSITORY, "icon": "fa-solid fa-code-branch"}
html_theme_options = SETTINGS["html_theme_options"] | {"icon_links": [repository]}
copyright = f"2026, {author}"

PAPER = ("fig", "tab", "sharpness", "propositions")
USE = ("recipes", "train", "dev")
REAL = ("real", "image")


def contents(chapter: str) -> str:
    """Return the table of contents of a chapter, in the order of the map of notebooks."""
    order = re.findall(r"\((\w[\w-]*)\.ipynb\)", (ROOT / "notebooks/README.md").read_text())
    names = [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    names.sort(key=lambda name: (*order, name).index(name))
    chapters = {"paper": [name for name in names if name.startswith(PAPER)]}
    chapters["use"] = [name for name in names if name.startswith(USE)]
    chapters["real"] = [name for name in names if name.startswith(REAL)]
    chapters["beyond"] = [n for n in names if not n.startswith(PAPER + USE + REAL)]
    pages = "".join(f"/notebooks/{name}\n" for name in chapters[chapter])
    return f"```{{toctree}}\n:maxdepth: 1\n\n{pages}```"


def reference(name: str) -> str:
    """Return an autodoc directive for each public name of a module; "" is softadlib itself."""
    path = f"softadlib.{name}".rstrip(".")
    module = importlib.import_module(path)
    top = {n: getattr(softadlib, n) for n in softadlib.__all__}
    listed = getattr(module, "__all__", None)
    lines = []
    for key in [*(listed or vars(module)), *top]:
        value = getattr(module, key, top.get(key))
        home = f"{getattr(value, '__module__', '')}."
        page = home.split(".")[1] if home.startswith("softadlib.") else None
        if key.startswith("_") or page is None or (not listed and f"{path}." not in home):
            continue
        if key in top and (page if page in PACKAGES else "") != name:
            continue  # on the page of its package
        full = f"softadlib.{key}" if top.get(key) is value else f"{path}.{key}"
        options = "\n   :members:" if inspect.isclass(value) else ""
        lines.append(f".. auto{'class' if options else 'function'}:: {full}{options}\n")
    return "```{eval-rst}\n" + "\n".join(dict.fromkeys(lines)) + "```\n"


def commands(_: str) -> str:
    """Return what `softad` and each of its commands say when asked for help."""
    environment = os.environ | {"COLUMNS": "72", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}

    def ask(*words: str) -> str:
        command = [sys.executable, "-m", "softadlib", *words, "--help"]
        return subprocess.check_output(command, text=True, env=environment)

    top = ask()
    names = re.findall(r"^ {4}([a-z][\w-]*)(?= {2,}|$)", top, re.M)
    pages = [("softad", top), *((f"softad {name}", ask(name)) for name in names)]
    return "\n".join(f"## {name}\n\n```text\n{said}```\n" for name, said in pages)


def fill(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Write lists of pages into chapters; fold code and describe pictures in notebooks."""
    writers = {"notebooks": contents, "commands": commands, "reference": reference}
    folder, _, name = docname.rpartition("/")
    if folder == "notebooks" and name != "README":
        source[0] = _notebook(source[0])
    elif docname == SETTINGS["root_doc"]:
        source[0] += "\n" + (HERE / "chapters.md").read_text()
    elif docname.startswith(CHAPTERS):
        mark = r"<!-- (notebooks|commands|reference) ?([\w.]*) -->"
        source[0] = re.sub(mark, lambda found: writers[found[1]](found[2]), source[0])


def _notebook(text: str) -> str:
    """Describe every picture by the page's title, and fold the code of a page that reads results."""
    notebook, number = json.loads(text), 0
    title = re.search(r"^# +(.*)$", "".join(notebook["cells"][0]["source"]), re.M)[1]
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code" and reads_results(text):
            cell["metadata"].setdefault("tags", []).append("hide-input")
        if any("image/png" in output.get("data", {}) for output in cell.get("outputs", [])):
            number += 1
            cell["metadata"]["mystnb"] = {"image": {"alt": f"{title}, picture {number}"}}
    notebook["metadata"].pop("widgets", None)  # a page without a kernel shows the stored picture
    return json.dumps(notebook)


def code_of(text: str) -> str:
    """Return the code of a notebook."""
    cells = json.loads(text)["cells"]
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")


def reads_results(text: str) -> bool:
    """Tell whether a notebook reads stored results: such a page is about them, not about its code."""
    return bool(re.search(r"softadlib(\.| import )results", code_of(text)))


def colab(name: str) -> str:
    """Return the address that opens a notebook in Colab, "" where it needs more than the package."""
    code = code_of((ROOT / f"notebooks/{name}.ipynb").read_text())
    imported = set(re.findall(r"^(?:from|import) (\w+)", code, re.M))
    reads_files = re.search(r"softadlib(\.| import )(results|training|workbook|_)", code)
    if reads_files or not imported <= {"softadlib", "torch", "matplotlib", "numpy", "pandas"}:
        return ""
    path = REPOSITORY.removeprefix("https://github.com/")
    return f"https://colab.research.google.com/github/{path}/blob/main/notebooks/{name}.ipynb"


def show_buttons(_app: Sphinx, page: str, _template: str, context: dict[str, Any], _: Any) -> None:
    """Tell the template of a notebook's page where Colab finds it."""
    folder, _, name = page.rpartition("/")
    if folder == "notebooks" and name != "README":
        context.update(is_notebook=True, colab=colab(name), repository=REPOSITORY)


def write_formula(_app: Sphinx, what: str, name: str, *event: Any) -> None:
    """Put the formula of a name below its first line, and keep |x| and *x from being markup."""
    lines = event[-1]
    parts = re.split(r"(>{3} .*?(?:\n *\n|\Z)|`+[^`]*`+)", "\n".join(lines), flags=re.S)
    parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
    lines[:] = "".join(parts).split("\n")
    if what == "attribute":
        lines.insert(0, "\\")  # else napoleon takes what stands before a colon for a type
    if formula := EQUATIONS.get(name.removeprefix("softadlib.")):
        end = lines.index("") if "" in lines else len(lines)
        lines[end:end] = ["", f".. math:: {formula}", ""]


class Book(StandaloneHTMLBuilder):
    """HTML pages whose first is index.html and whose chapters lie beside it."""

    name = "html"

    def _place(self, docname: str) -> str:
        if docname == SETTINGS["root_doc"]:
            return "index"
        return docname.removeprefix(CHAPTERS).removeprefix(".github/")

    def get_target_uri(self, docname: str, typ: str | None = None) -> str:
        """Return the page's address, from the book's root."""
        return super().get_target_uri(self._place(docname), typ)

    def get_output_path(self, page_name: str, /) -> Any:
        """Return the page's file."""
        return super().get_output_path(self._place(page_name))

    def dump_search_index(self) -> None:
        """Write the search index with the addresses of the pages."""
        super().dump_search_index()
        index = Path(self.outdir, "searchindex.js")
        text = index.read_text()
        names = re.search(r'"?docnames"?:(\[.*?\])', text)[1]
        placed = json.dumps([self._place(name) for name in json.loads(names)])
        index.write_text(text.replace(names, placed, 1))


def visit_math(self: Any, node: Any) -> None:
    """Write a formula as MathML, which browsers draw without a script."""
    displayed = isinstance(node, nodes.math_block)
    formula = convert(node.astext(), display="block" if displayed else "inline")
    self.body.append(f'<div class="formula">{formula}</div>' if displayed else formula)
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the functions above."""
    app.add_builder(Book, override=True)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.connect("source-read", fill)
    app.connect("html-page-context", show_buttons)
    app.connect("autodoc-process-docstring", write_formula, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
