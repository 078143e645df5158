"""Build one self-contained HTML page of a profile: findings and pictures first, the rest folded."""

import base64
import datetime
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from softadlib import __version__, _workspace
from softadlib._validation import UserError
from softadlib.results import reader
from softadlib.results.fingerprint import current_fields
from softadlib.results.paths import profile_dir
from softadlib.results.provenance import Provenance
from softadlib.training.profiles import datasets_of
from softadlib.workbook import findings
from softadlib.workbook.notebooks.imports import skip_iri_grammar
from softadlib.workbook.notebooks.plan import FIGURES, drawings

CHAPTERS = {
    "tab": "Tables of the paper",
    "fig": "Figures of the paper",
    "prop": "Theory",
    "app": "Theory",
    "sec": "Theory",
    "": "Beyond the paper",
}
"""Beginning of a notebook's name → its chapter."""
NO_ALT = 'alt="No description has been provided for this image"'


@dataclass(frozen=True)
class Section:
    """One executed notebook on the page."""

    anchor: str
    source: str
    title: str
    body: str


def _read(notebook: Path) -> Any:
    with skip_iri_grammar():
        import nbformat

    try:
        document = nbformat.read(notebook, as_version=4)
        nbformat.validate(document)
        dict(document["metadata"].get("papermill", {}))
        return document
    except Exception as error:  # nbformat raises many types
        what = " ".join(str(error).split())[:80]
        raise UserError(
            f"{notebook} is broken ({what}); delete it and run again what drew it"
        ) from None


def _title(document: Any, notebook: Path) -> str:
    """Return the first heading, and the dataset where the notebook is drawn once for each."""
    lines = document["cells"][0]["source"].splitlines() if document["cells"] else []
    title = next((line[2:].strip() for line in lines if line.startswith("# ")), notebook.stem)
    given = document["metadata"].get("papermill", {}).get("parameters", {})
    return f"{title}: {given['dataset']}" if "dataset" in given else title


def section(notebook: Path, source: str) -> Section:
    """Render a notebook's prose and outputs as HTML, pictures inside, no code."""
    from markupsafe import Markup, escape

    with skip_iri_grammar():
        from nbconvert import HTMLExporter

    exporter = HTMLExporter(template_name="basic", exclude_input=True, exclude_output_prompt=True)
    document = _read(notebook)
    title = _title(document, notebook)
    document["cells"] = [
        cell
        for cell in document["cells"]
        if not {"parameters", "injected-parameters"} & set(cell["metadata"].get("tags", []))
    ]
    document["metadata"].pop("widgets", None)
    for output in (o for c in document["cells"] for o in c.get("outputs", ())):
        # a live view needs a kernel; the picture beside it stays
        output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    body = exporter.from_notebook_node(document)[0]
    anchor = re.sub(r"[^\w-]+", "-", notebook.stem)
    body = findings.readable(_unique_ids(body, anchor))
    count = body.count(NO_ALT)
    for number in range(1, count + 1):
        alt = f"{title}, picture {number} of {count}"
        body = body.replace(NO_ALT, f'alt="{escape(alt)}"', 1)
    return Section(anchor, source, title, Markup(body))


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


def pictures(notebook: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every picture of an executed notebook as PNG, with a file name."""
    if notebook.suffix != ".ipynb":
        return
    outputs = (o for c in _read(notebook)["cells"] for o in c.get("outputs", ()))
    encoded = [o["data"]["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    for number, text in enumerate(encoded, 1):
        yield f"{notebook.stem}-{number}.png", base64.b64decode(text)


def _chapters(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Group the sections by the beginning of their notebook's name."""
    groups: dict[str, list[Section]] = {title: [] for title in CHAPTERS.values()}
    for part in sections:
        kind = next(beginning for beginning in CHAPTERS if part.source.startswith(beginning))
        groups[CHAPTERS[kind]].append(part)
    return [
        {"title": title, "anchor": title.lower().replace(" ", "-"), "sections": parts}
        for title, parts in groups.items()
        if parts
    ]


def _multiples(targets: Sequence[Path], sections: Sequence[Section]) -> list[dict[str, str]]:
    """Return the first picture of each dataset's trajectories."""
    thumbnails = []
    for target, part in zip(targets, sections):
        first = next(pictures(target), None)
        if "trajectories" in part.source and first is not None:
            source = f"data:image/png;base64,{base64.b64encode(first[1]).decode()}"
            dataset = part.title.rpartition(": ")[2]
            thumbnails.append({"anchor": part.anchor, "title": dataset, "source": source})
    return thumbnails


def build(profile: str) -> Path:
    """Write outputs/<profile>/index.html and return its path. Raises UserError without results.

    The pictures made of the profile's own results are put beside their notebooks as PNG, too.
    """
    import jinja2
    from markupsafe import Markup

    folder = profile_dir(profile)
    drawn = [
        (task.target, task.source.stem)
        for task in drawings(profile, datasets_of(profile))
        if task.target.exists()
    ]
    shared = sorted(profile_dir(FIGURES).glob("*.ipynb"))
    shared = [path for path in shared if not path.name.endswith(".error.ipynb")]
    facts = reader.provenances(profile)
    if not drawn and facts.empty:
        raise UserError(f"nothing under {folder}; first: softad run {profile}")
    drawn_stems = {path.stem for path, _ in drawn}
    listed = [*drawn, *((path, path.stem) for path in shared if path.stem not in drawn_stems)]
    sections = [section(path, source) for path, source in listed]
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        _resource("page.html")
    )
    summary = findings.summarise(profile, facts)
    provenance = [folder.read_provenance() for folder in reader.finished(profile)]
    commits = {s.other.get("commit") for record in provenance for s in record.sessions} - {None}
    text = template.render(
        profile=profile,
        css=Markup(_resource("page.css")),
        version=__version__,
        commits=sorted(commits),
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        multiples=_multiples([path for path, _ in listed], sections),
        chapters=_chapters(sections),
        trainings=Markup(_trainings(facts)),
        protocols=_protocols(provenance),
        **summary,
    )
    for notebook, _ in drawn:
        for name, picture in pictures(notebook):
            _workspace.write(notebook.with_name(name), picture)
    target = folder / "index.html"
    _workspace.write(target, text)
    return target


def _resource(name: str) -> str:
    return files("softadlib.workbook").joinpath(name).read_text(encoding="utf-8")


def _trainings(facts: pd.DataFrame) -> str:
    """Return the table of trainings."""
    if facts.empty:
        return "<p>Nothing is trained yet.</p>"
    words = {"word": "in place of a grid", "label_noise": "label noise"}
    shown = facts.drop(columns="training").rename(columns=words)
    labels = findings.LABELS
    shown["method"] = shown["method"].map(lambda name: labels.get(name, name))
    table: str = shown.to_html(index=False, border=0, escape=True)
    return table


def _protocols(provenance: Sequence[Provenance]) -> list[dict[str, str]]:
    """Return how each dataset was trained, methods trained alike together; each method's settings and grid."""
    lines = []
    for dataset, results in itertools.groupby(provenance, key=lambda facts: facts.dataset):
        alike: dict[str, list[str]] = {}
        of_methods = []
        for facts in results:
            protocol, method = current_fields(facts.protocol), facts.method
            label = findings.LABELS.get(method, method)
            omitted = ("profile", "dataset", "grids", "settings")
            words = ", ".join(f"{k} {v}" for k, v in protocol.items() if k not in omitted)
            alike.setdefault(words, []).append(label)
            own = [f"{k} {v}" for k, v in protocol["settings"].get(method, {}).items()]
            if values := protocol["grids"].get(method):
                own.append(
                    values if isinstance(values, str) else ", ".join(f"{v:g}" for v in values)
                )
            if own:
                of_methods.append({"title": f"{dataset} × {label}", "words": "; ".join(own)})
        for words, labels in alike.items():
            title = dataset if len(alike) == 1 else f"{dataset} × {', '.join(labels)}"
            lines.append({"title": title, "words": words})
        lines += of_methods
    return lines
