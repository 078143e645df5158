"""Write one self-contained HTML page of a profile: its pictures and tables, without code."""

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softadlib import __version__, _files
from softadlib._validation import MissingData, UserError, counted
from softadlib.workbook.analysis.tables import LABELS
from softadlib.workbook.pages.notebooks import (
    Page,
    pages_of_no_profile,
    pages_of_profile,
    stored_results,
)
from softadlib.workbook.pages.toc import read_toc
from softadlib.workbook.studies.parquet import outputs
from softadlib.workbook.studies.read import finished, provenances

HERE = Path(__file__).parent
FIRST = "compare"
"""The notebook that a page opens with."""
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\\$])\$([^$\n]+?)\$(?!\$)", re.DOTALL)
"""A formula in Markdown: $$displayed$$ or $inline$."""
PARAMETERS = {"parameters", "injected-parameters"}
"""Tags of cells that are not shown."""
VIEW = "application/vnd.jupyter.widget-view+json"
"""A live view needs a kernel; the picture beside it stays."""


@dataclass(frozen=True)
class Section:
    """One executed notebook on the page."""

    anchor: str
    source: str
    body: str


def section(page: Page, anchors: Mapping[str, str]) -> Section:
    """Render an executed page's prose and outputs as HTML, pictures inside, no code.

    `anchors`: notebook → section. Links to notebooks lead there, links to other files become text.
    """
    from bs4 import BeautifulSoup
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(template_name="basic", exclude_input=True, exclude_output_prompt=True)
    html = BeautifulSoup(exporter.from_notebook_node(_shown(page))[0], "html.parser")
    title = html.h1.get_text().rstrip("¶") if html.h1 else page.name
    if "dataset" in page.parameters:
        title += f" on {page.parameters['dataset']}"
    for number, picture in enumerate(html.select("img"), 1):
        picture["alt"] = f"{title}, picture {number}"
    _link_inside(html, page.name, anchors)
    return Section(page.name, page.source.stem, str(html))


def _shown(page: Page) -> Any:
    """Return the notebook of a page without controls and parameters, its formulas as MathML."""
    import nbformat

    try:
        document = nbformat.read(page.target, as_version=4)
        nbformat.validate(document)
    except Exception as error:  # nbformat raises many types
        what = " ".join(str(error).split())[:80]
        advice = "delete it and run again what drew it"
        raise UserError(f"{page.target} is broken ({what}); {advice}") from None
    document.metadata.pop("widgets", None)
    shown = []
    for cell in document.cells:
        if cell.cell_type == "markdown":
            cell.source = FORMULA.sub(_mathml, cell.source)
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop(VIEW, None)
        if not PARAMETERS & set(cell.metadata.get("tags", ())):
            shown.append(cell)
    document.cells = shown
    return document


def _link_inside(html: Any, section: str, anchors: Mapping[str, str]) -> None:
    """Put the section's name before each id, so that ids are unique, and point links to sections."""
    for element in html.select("[id]"):
        element["id"] = f"{section}-{element['id']}"
    for link in html.select("a[href]"):
        address = str(link["href"])
        notebook = Path(address.partition("#")[0]).stem
        if address.startswith("#"):
            link["href"] = f"#{section}-{address[1:]}"
        elif ":" not in address and notebook in anchors:
            link["href"] = f"#{anchors[notebook]}"
        elif ":" not in address:
            del link["href"]


def _mathml(formula: re.Match[str]) -> str:
    """Return a formula as MathML, which browsers draw without a script."""
    from latex2mathml.converter import convert

    display = "block" if formula[1] else "inline"
    return " ".join(convert(formula[1] or formula[2], display=display).split())


def _chapters(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Group the sections by the parts of the list of pages; those that it does not name come last."""
    parts = {part.part: [entry.page for entry in part.pages] for part in read_toc()}
    listed = {name for names in parts.values() for name in names}
    parts["Other pages"] = [s.source for s in sections if s.source not in listed]
    chapters = []
    for title, names in parts.items():
        chosen = [section for section in sections if section.source in names]
        chosen.sort(key=lambda section: names.index(section.source))
        if chosen:
            anchor = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
            chapters.append({"title": title, "anchor": anchor, "sections": chosen})
    return chapters


def build(profile: str, target: Path | None = None) -> Path:
    """Write a profile's page, by default outputs/<profile>/index.html, and return its path.

    It opens with the page `FIRST`; the others are folded. Raises MissingData where there is nothing to
    show yet.
    """
    import jinja2
    from markupsafe import Markup

    stored = stored_results(profile)
    if not stored:
        raise MissingData(
            f"nothing is trained of profile {profile!r} yet; first: softad run {profile}"
        )
    pages = [page for page in pages_of_profile(profile, stored) if page.target.exists()]
    if not pages:
        raise MissingData(
            f"nothing is drawn of profile {profile!r} yet; first: softad draw {profile}"
        )
    pages += [page for page in pages_of_no_profile() if page.target.exists()]
    anchors = {page.source.stem: page.name for page in reversed(pages)}
    sections = [section(page, anchors) for page in pages]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((HERE / "page.html").read_text(encoding="utf-8"))
    commits = {s.commit for of in finished(profile).values() for s in of.sessions} - {None}
    facts = provenances(profile).rename(columns={"label_noise": "label noise"})
    facts["method"] = facts["method"].map(LABELS)
    text = template.render(
        profile=profile,
        facts=facts,
        counted=counted,
        css=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        version=__version__,
        commits=sorted(str(commit) for commit in commits),
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        first=[section for section in sections if section.source == FIRST],
        chapters=_chapters([section for section in sections if section.source != FIRST]),
        trainings=Markup(facts.to_html(index=False, border=0)),
    )
    target = target or outputs(profile) / "index.html"
    _files.write(target, text)
    return target
