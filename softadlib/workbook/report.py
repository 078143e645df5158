"""One self-contained HTML page of a profile: tables first, then every figure, then how it was run."""

import base64
import datetime
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from softadlib import __version__, _workspace
from softadlib._validation import UserError
from softadlib.results import reader as store
from softadlib.results.folder import profile_dir, read_provenance
from softadlib.training.profiles import datasets_of
from softadlib.workbook.notebooks.plan import drawings

STYLE = """
:root { --ink: #1c1e21; --soft: #5f6670; --line: #dfe2e6; --accent: #d5174e; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; font: 16px/1.55 system-ui, "Segoe UI", sans-serif; }
header, main, nav ol { max-width: 68rem; margin: 0 auto; padding: 0 1.5rem; }
header { padding-top: 2.5rem; } header p { color: var(--soft); max-width: 48rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .6rem; }
h2 { font-size: 1.45rem; margin: 3.2rem 0 .4rem; padding-top: .8rem; border-top: 2px solid var(--ink); }
section h1 { font-size: 1.2rem; margin: 2.6rem 0 .4rem; padding-top: .8rem; border-top: 1px solid var(--line); }
section h2 { font-size: 1.02rem; margin: 1.6rem 0 .2rem; border: 0; padding: 0; }
nav { border: 1px solid var(--line); border-width: 1px 0; margin: 1.5rem 0; background: #fafbfc; }
nav ol { columns: 22rem; padding-top: .8rem; padding-bottom: .8rem; list-style: none; }
nav li { padding-left: 1.2rem; text-indent: -1.2rem; break-inside: avoid; }
nav a { color: inherit; text-decoration: none; } nav a:hover { color: var(--accent); text-decoration: underline; }
.table, section .jp-RenderedHTMLCommon, section .output_html { overflow-x: auto; }
table { border-collapse: collapse; border: 0; font-size: .84rem; margin: .8rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .6rem; text-align: right; border: 0;
   border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { border-bottom: 0; font-weight: 600; }
thead tr th { text-align: right !important; } thead tr th[colspan] { text-align: left !important; }
.how table { font-size: .75rem; } .how :is(th, td) { padding: .28rem .3rem; }
.how tr :is(th, td):nth-child(-n+2) { text-align: left !important; }
thead tr:last-child th { border-bottom: 1.5px solid var(--ink); } tbody th { text-align: left; font-weight: 500; }
tbody th { white-space: normal; max-width: 13rem; }
img { max-width: 100%; height: auto; display: block; margin: .6rem 0; }
pre { font-size: .82rem; background: #f6f7f9; padding: .7rem .9rem; overflow-x: auto; border-radius: 4px; }
code { font-size: .9em; overflow-wrap: anywhere; } .anchor-link { display: none; } .prompt { display: none; }
footer { color: var(--soft); font-size: .85rem; padding: 3rem 0 2rem; }
"""


def _order(notebook: Path) -> tuple:
    """Tables, then figures by their number in the paper, then the rest by name."""
    title = _title(notebook)
    kind = next((i for i, word in enumerate(("Table", "Figure")) if title.startswith(word)), 2)
    number = re.search(r"\d+", title)
    return (kind, int(number.group()) if number and kind < 2 else 0, notebook.stem)


def _read(notebook: Path) -> Any:
    import nbformat

    try:
        return nbformat.read(notebook, as_version=4)
    except Exception as error:  # nbformat has many of its own
        what = " ".join(str(error).split())[:80]
        raise UserError(
            f"{notebook} is broken ({what}); delete it and run again what drew it"
        ) from None


def _title(notebook: Path) -> str:
    """Its first heading, and the dataset where the notebook is drawn once for each."""
    document = _read(notebook)
    lines = document["cells"][0]["source"].splitlines() if document["cells"] else []
    title = next((line[2:].strip() for line in lines if line.startswith("# ")), notebook.stem)
    given = document["metadata"].get("papermill", {}).get("parameters", {})
    return f"{title}: {given['dataset']}" if "dataset" in given else title


def _body(notebook: Path) -> str:
    """The notebook's prose and outputs as HTML, pictures inside, no code."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(template_name="basic", exclude_input=True, exclude_output_prompt=True)
    document = _read(notebook)
    document["cells"] = [
        c
        for c in document["cells"]
        if not {"parameters", "injected-parameters"} & set(c["metadata"].get("tags", []))
    ]
    document["metadata"].pop("widgets", None)
    for output in (o for c in document["cells"] for o in c.get("outputs", ())):
        # a live view needs a kernel; the picture beside it stays
        output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    return exporter.from_notebook_node(document)[0]


def pictures(notebook: Path) -> Iterator[tuple[str, bytes]]:
    """Every picture of an executed notebook as PNG, with a file name."""
    if notebook.suffix != ".ipynb":
        return
    outputs = (o for c in _read(notebook)["cells"] for o in c.get("outputs", ()))
    drawn = [o["data"]["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    for i, text in enumerate(drawn, 1):
        yield f"{notebook.stem}-{i}.png", base64.b64decode(text)


def _sweeps(facts: pd.DataFrame) -> str:
    """In words, how much was trained: one clause for all datasets that were trained alike."""
    alike: dict[str, list[str]] = {}
    for dataset, part in facts.groupby("dataset", sort=False):
        trials, noise = part["trials"].max(), part["label_noise"].max()
        words = (
            f"{trials} trial{'s' if trials > 1 else ''}, up to {part['grid'].max()} values per swept method, "
            f"{part['epochs'].max()} epochs, {part['runs'].sum()} runs"
        )
        words += f" (label noise {noise})" if noise != "0" else ""
        alike.setdefault(words, []).append(dataset)
    return "; ".join(
        f"{', '.join(names)}: {'each ' if len(names) > 1 else ''}{words}"
        for words, names in alike.items()
    )


def build(profile: str) -> Path:
    """Write outputs/<profile>/index.html and return its path. Raises UserError without results.

    The pictures made of the profile's own results are put beside their notebooks as PNG, too.
    """
    folder = profile_dir(profile)
    drawn = [
        task
        for task in drawings(profile, datasets_of(profile, _workspace.params_dir()))
        if task.target.exists()
    ]
    notebooks = sorted((task.target for task in drawn), key=_order)
    facts = store.provenances(profile)
    if not notebooks and facts.empty:
        raise UserError(f"nothing under {folder}; first: softad run {profile}")
    tables = [n for n in notebooks if _order(n)[0] == 0]
    figures = [n for n in notebooks if _order(n)[0] != 0]
    links, sections = [], {"Tables": tables, "Figures": figures}
    page = []
    for heading, group in sections.items():
        page.append(f"<h2>{heading}</h2>")
        for notebook in group:
            anchor = html.escape(notebook.stem, quote=True)
            links.append(f'<li><a href="#{anchor}">{html.escape(_title(notebook))}</a></li>')
            page.append(f'<section id="{anchor}">{_body(notebook)}</section>')
    links.append('<li><a href="#how">How each was run</a></li>')
    page.append(f'<h2 id="how">How each was run</h2>{_how(profile, facts)}')
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    swept = _sweeps(facts) if len(facts) else "No training results yet"
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>softadlib: {html.escape(profile)}</title><style>{STYLE}</style></head><body>"
        f"<header><h1>Soft ascent-descent, profile <em>{html.escape(profile)}</em></h1>"
        f"<p>{html.escape(swept)}. Every number below comes from these runs; every interval is over trials.</p>"
        f"</header><nav><ol>{''.join(links)}</ol></nav><main>{''.join(page)}"
        f"<footer>softadlib {__version__}, {now}. Holland &amp; Nakatani, <em>Soft ascent-descent as a stable "
        "and flexible alternative to flooding</em>, NeurIPS 2024.</footer></main></body></html>\n"
    )
    for notebook in (task.target for task in drawn if task.reads):
        for name, picture in pictures(notebook):
            _workspace.write(notebook.with_name(name), picture)
    target = folder / "index.html"
    _workspace.write(target, text)
    return target


def _how(profile: str, facts: pd.DataFrame) -> str:
    if facts.empty:
        return f"<p>No training results; <code>softad run {html.escape(profile)}</code> makes them.</p>"
    shown = facts.rename(columns={"word": "in place of a grid"})
    table = shown.to_html(index=False, border=0, escape=True)
    lines = []
    for path in store.places(profile):
        known = read_provenance(path / "provenance.json")
        if path.name == "erm":
            told = {
                k: v
                for k, v in known["protocol"].items()
                if k not in ("profile", "dataset", "grids")
            }
            facts_line = ", ".join(f"{k} {v}" for k, v in told.items())
            lines.append(
                f"<p><b>{html.escape(known['dataset'])}</b>: {html.escape(facts_line)}.</p>"
            )
        values = known["protocol"]["grids"].get(path.name)
        if values:
            grid = values if isinstance(values, str) else ", ".join(f"{v:g}" for v in values)
            lines.append(f"<p>{html.escape(known['dataset'])} × {path.name}: {grid}</p>")
    return (
        f"<p>One line per training notebook; the executed notebooks lie beside their data in "
        f"<code>outputs/{html.escape(profile)}/</code>.</p><div class='table how'>{table}</div>"
        f"<details><summary>Protocols and grids</summary>{''.join(lines)}</details>"
    )
