"""Write one self-contained HTML page of a profile: its pictures and tables, without code."""

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from softadlib import __version__, _workspace
from softadlib._validation import MissingData, UserError
from softadlib.methods import METHODS
from softadlib.results.files import outputs
from softadlib.results.read import finished, provenances
from softadlib.workbook.notebooks import (
    Page,
    pages_of_no_profile,
    pages_of_profile,
    stored_datasets,
)
from softadlib.workbook.toc import read_toc

FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\\$])\$([^$\n]+?)\$(?!\$)", re.DOTALL)
"""A formula in Markdown: $$displayed$$ or $inline$."""
NO_ALT = 'alt="No description has been provided for this image"'


@dataclass(frozen=True)
class Section:
    """One executed notebook on the page."""

    anchor: str
    source: str
    title: str
    body: str


def section(notebook: Path, source: str) -> Section:
    """Render a notebook's prose and outputs as HTML, pictures inside, no code."""
    import nbformat
    from markupsafe import escape
    from nbconvert import HTMLExporter

    try:
        document = nbformat.read(notebook, as_version=4)
        nbformat.validate(document)
    except Exception as error:  # nbformat raises many types
        what = " ".join(str(error).split())[:80]
        advice = "delete it and run again what drew it"
        raise UserError(f"{notebook} is broken ({what}); {advice}") from None
    title = _title(document, notebook)
    hidden = {"parameters", "injected-parameters"}
    document["cells"] = [
        cell for cell in document["cells"] if not hidden & set(cell["metadata"].get("tags", []))
    ]
    for cell in document["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = FORMULA.sub(_mathml, cell["source"])
    document["metadata"].pop("widgets", None)
    for output in (o for c in document["cells"] for o in c.get("outputs", ())):
        # a live view needs a kernel; the picture beside it stays
        output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    exporter = HTMLExporter(template_name="basic", exclude_input=True, exclude_output_prompt=True)
    anchor = re.sub(r"[^\w-]+", "-", notebook.stem)
    body = _unique_ids(exporter.from_notebook_node(document)[0], anchor)
    count = body.count(NO_ALT)
    for number in range(1, count + 1):
        alt = f"{title}, picture {number} of {count}"
        body = body.replace(NO_ALT, f'alt="{escape(alt)}"', 1)
    return Section(anchor, source, title, body)


def _with_links(part: Section, sections: Sequence[Section]) -> Section:
    """Let links to other pages lead to their sections; links to what is not on this page become text."""
    from markupsafe import Markup

    anchors = {other.source: other.anchor for other in reversed(sections)}

    def lead(match: re.Match[str]) -> str:
        anchor = anchors.get(match[1].partition("#")[0].removesuffix(".ipynb"))
        return f' href="#{anchor}"' if anchor else ""

    body = re.sub(r'\shref="(?!https?:|mailto:|#)([^"]*)"', lead, part.body)
    return replace(part, body=Markup(body))


def _mathml(formula: re.Match[str]) -> str:
    """Return a formula as MathML, which browsers draw without a script."""
    from latex2mathml.converter import convert

    display = "block" if formula[1] else "inline"
    return " ".join(convert(formula[1] or formula[2], display=display).split())


def _title(document: Any, notebook: Path) -> str:
    """Return the first heading, and the dataset where the notebook is drawn once for each."""
    lines = document["cells"][0]["source"].splitlines() if document["cells"] else []
    title = next((line[2:].strip() for line in lines if line.startswith("# ")), notebook.stem)
    given = document["metadata"].get("papermill", {}).get("parameters", {})
    return f"{title}: {given['dataset']}" if "dataset" in given else title


def _unique_ids(body: str, prefix: str) -> str:
    """Put `prefix` before every id and the links to it; number the ids that repeat."""
    seen: dict[str, int] = {}

    def rename(match: re.Match[str]) -> str:
        name = match[1]
        seen[name] = seen.get(name, 0) + 1
        suffix = f"-{seen[name]}" if seen[name] > 1 else ""
        return f' id="{prefix}-{name}{suffix}"'

    body = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', body)
    return re.sub(r'\sid="([^"]+)"', rename, body)


def _chapters(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Group the sections by the parts of the list of pages; those that it does not name come last."""
    names = {part.part: [entry.page for entry in part.pages] for part in read_toc()}
    listed = {name for pages in names.values() for name in pages}
    others = [section.source for section in sections if section.source not in listed]
    names["Other pages"] = list(dict.fromkeys(others))
    chapters = []
    for title, pages in names.items():
        chosen = [section for page in pages for section in sections if section.source == page]
        if chosen:
            anchor = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
            chapters.append({"title": title, "anchor": anchor, "sections": chosen})
    return chapters


def build(profile: str, target: Path | None = None) -> Path:
    """Write a profile's page, by default outputs/<profile>/index.html, and return its path.

    Raises MissingData where nothing is drawn yet.
    """
    import jinja2
    from markupsafe import Markup

    drawn = _drawn(pages_of_profile(profile, stored_datasets(profile)))
    if not drawn:
        raise MissingData(
            f"nothing is drawn of profile {profile!r} yet; first: softad run {profile}"
        )
    pages = drawn + _drawn(pages_of_no_profile())
    sections = [section(page.target, page.source.stem) for page in pages]
    sections = [_with_links(part, sections) for part in sections]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(_resource("page.html"))
    commits = {s.commit for of in finished(profile).values() for s in of.sessions} - {None}
    text = template.render(
        profile=profile,
        css=Markup(_resource("page.css")),
        version=__version__,
        commits=sorted(str(commit) for commit in commits),
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        chapters=_chapters(sections),
        trainings=Markup(_trainings(provenances(profile))),
    )
    target = target or outputs(profile) / "index.html"
    _workspace.write(target, text)
    return target


def _drawn(pages: Sequence[Page]) -> list[Page]:
    """Return the pages whose drawn notebook is there."""
    return [page for page in pages if page.target.exists()]


def _resource(name: str) -> str:
    return files("softadlib.workbook").joinpath(name).read_text(encoding="utf-8")


def _trainings(facts: pd.DataFrame) -> str:
    """Return the table of trainings."""
    shown = facts.rename(columns={"label_noise": "label noise"})
    shown["method"] = [METHODS[name].label for name in shown["method"]]
    return str(shown.to_html(index=False, border=0, escape=True))
