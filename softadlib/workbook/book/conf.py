"""Sphinx configuration of the book: notebooks as stored, READMEs as chapters, nothing is executed."""

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
EQUATIONS = yaml.safe_load((HERE / "equations.yaml").read_text())

project, release = PROJECT["name"], PROJECT["version"]
author = ", ".join(person["name"] for person in PROJECT["authors"])
root_doc = "README"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    ".github/CONTRIBUTING.md",
    "notebooks/*",
    "params/README.md",
    "softadlib/README.md",
    "outputs/README.md",
    "outputs/*/README.md",
    f"{CHAPTERS}**",
]
# Folders that hold no page: without this line Sphinx walks the virtual environment.
exclude_patterns = [
    path.name
    for path in ROOT.iterdir()
    if path.is_dir() and path.name not in {".github", "notebooks", "params", "softadlib", "outputs"}
] + ["outputs/book", "outputs/*/*/*", "**/.ipynb_checkpoints", f"{CHAPTERS}chapters.md"]

nb_execution_mode = "off"
nb_render_markdown_format = "myst"
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
html_math_renderer = "mathml"
napoleon_custom_sections = ["Shape", "Source"]
default_role = "code"
suppress_warnings = ["myst.header"]  # levels that a README leaves out; links are still checked
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"

html_theme = "pydata_sphinx_theme"
html_title = "softadlib"
html_copy_source, html_show_sourcelink, html_sourcelink_suffix = True, False, ""
html_static_path, templates_path = ["static"], ["templates"]
html_css_files = ["book.css"]
html_use_index = False
html_favicon = "static/icon.svg"
html_sidebars = {page: [] for page in ("CHANGELOG", f"{CHAPTERS}how_it_works")}
html_context = {"default_mode": "auto"}
html_extra_path = ["explorer.html"]
html_theme_options: dict[str, Any] = {
    "header_links_before_dropdown": 6,
    "article_header_end": ["buttons.html"],
    "navigation_with_keys": False,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "icon_links": [{"name": "Repository", "url": REPOSITORY, "icon": "fa-solid fa-code-branch"}],
}
copyright = f"2026, {author}"

PAPER = ("fig", "tab", "sec", "prop", "app")
USE = ("recipes", "train", "explorer", "dev")


def notebooks() -> dict[str, list[str]]:
    """Sort the notebooks that are there into chapters, each in the order of the map of notebooks."""
    order = re.findall(r"\((\w[\w-]*)\.ipynb\)", (ROOT / "notebooks/README.md").read_text())
    names = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    paper = [name for name in names if name.startswith(PAPER)]
    use = [name for name in names if name.startswith(USE)]
    return {"paper": paper, "use": use, "beyond": [n for n in names if n not in (*paper, *use)]}


def reference(package: str) -> str:
    """Return an autodoc directive for each public name of a package; "" is softadlib itself."""
    module = importlib.import_module(f"softadlib.{package}".rstrip("."))
    names = {name: getattr(module, name) for name in getattr(module, "__all__", dir(module))}
    at_top = {name: getattr(softadlib, name) for name in softadlib.__all__}
    lines = []
    for name, value in (names | at_top).items():
        home = getattr(value, "__module__", "")
        place = home.split(".")[1] if home.startswith("softadlib.") else None
        page = place if place in PACKAGES else ""
        if name.startswith("_") or place is None or (name in at_top and page != package):
            continue
        path = name if at_top.get(name) is value else f"{package}.{name}"
        if not inspect.isclass(value):
            lines.append(f".. autofunction:: softadlib.{path}\n")
        elif issubclass(value, Exception):
            lines.append(f".. autoexception:: softadlib.{path}\n")
        else:
            lines.append(f".. autoclass:: softadlib.{path}\n   :members:\n")
    return "```{eval-rst}\n" + "\n".join(lines) + "```\n"


def commands() -> str:
    """Return what `softad` and each of its commands say when asked for help."""
    environment = os.environ | {"COLUMNS": "88", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}

    def ask(*words: str) -> str:
        command = [sys.executable, "-m", "softadlib", *words, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        return done.stdout

    top = ask()
    names = re.findall(r"^ {4}([a-z][\w-]*)(?= {2,}|$)", top, re.M)
    pages = [("softad", top), *((f"softad {name}", ask(name)) for name in names)]
    return "\n".join(f"## {name}\n\n```text\n{said}```\n" for name, said in pages)


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    """Write lists of pages into chapters; fold code and describe pictures in notebooks."""
    folder, _, name = docname.rpartition("/")
    if folder == "notebooks" and name != "README":
        source[0] = _notebook(name, source[0])
        return

    def entries(match: re.Match[str]) -> str:
        kind, argument = match.groups()
        if kind == "notebooks":
            pages = [f"/notebooks/{page}" for page in notebooks()[argument]]
            return "```{toctree}\n:maxdepth: 1\n\n" + "\n".join(pages) + "\n```"
        return commands() if kind == "commands" else reference(argument)

    if docname == root_doc:
        source[0] += "\n" + (HERE / "chapters.md").read_text()
    elif docname.startswith(CHAPTERS):
        source[0] = re.sub(r"<!-- (notebooks|commands|reference) ?(\w*) -->", entries, source[0])


def _notebook(name: str, text: str) -> str:
    """Describe every picture by the headings above it, and fold the code of pages that read results."""
    notebook = json.loads(text)
    title = heading = name
    number, folded = 0, reads_results(text)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            for level, words in re.findall(r"^(#+) +(.*)$", "".join(cell["source"]), re.M):
                heading = words
                title = words if len(level) == 1 else title
        elif cell["cell_type"] == "code":
            if folded:
                cell["metadata"].setdefault("tags", []).append("hide-input")
            if any("image/png" in output.get("data", {}) for output in cell["outputs"]):
                number += 1
                words = title if heading == title else f"{title}: {heading}"
                cell["metadata"]["mystnb"] = {"image": {"alt": f"{words}, picture {number}"}}
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
    """Return the address that opens a notebook in Colab, "" where it needs more than the library."""
    text = (ROOT / f"notebooks/{name}.ipynb").read_text()
    imported = set(re.findall(r"^(?:from|import) (\w+)", code_of(text), re.M))
    if reads_results(text) or not imported <= {"softadlib", "torch", "matplotlib", "math"}:
        return ""
    path = REPOSITORY.removeprefix("https://github.com/")
    return f"https://colab.research.google.com/github/{path}/blob/main/notebooks/{name}.ipynb"


def show_buttons(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Tell the template of a notebook's page where Colab finds it."""
    folder, _, name = pagename.rpartition("/")
    if folder == "notebooks" and name != "README":
        context.update(is_notebook=True, colab=colab(name), repository=REPOSITORY)


def write_formula(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Put the formula of a name below its first line, and keep |x| and *x from being markup."""
    code = False
    for i, line in enumerate(lines):
        code = line.lstrip().startswith(">>>") or (code and bool(line.strip()))
        if not code:
            parts = re.split(r"(`+[^`]*`+)", line)
            parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
            lines[i] = "".join(parts)
    if formula := EQUATIONS.get(name.removeprefix("softadlib.")):
        end = lines.index("") if "" in lines else len(lines)
        lines[end:end] = ["", f".. math:: {formula}", ""]


class Book(StandaloneHTMLBuilder):
    """HTML pages whose first is index.html and whose chapters lie beside it."""

    name = "html"

    def _place(self, docname: str) -> str:
        return (
            "index"
            if docname == root_doc
            else docname.removeprefix(CHAPTERS).removeprefix(".github/")
        )

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
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def visit_displayed_math(self: Any, node: Any) -> None:
    """Write a displayed formula as MathML."""
    self.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the functions above."""
    app.add_builder(Book, override=True)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displayed_math, None))
    app.connect("source-read", fill)
    app.connect("html-page-context", show_buttons)
    app.connect("autodoc-process-docstring", write_formula, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
