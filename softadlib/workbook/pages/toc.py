"""The list of pages, `notebooks/_toc.yml`: its parts, and the tables of `notebooks/README.md`.

`python -m softadlib.workbook.pages.toc` writes the tables after a change of the list.
"""

from dataclasses import dataclass
from pathlib import Path

from softadlib import _files
from softadlib._validation import UserError
from softadlib.workbook.studies.params import parse_yaml

MARKS = ("<!-- pages -->", "<!-- end of pages -->")
"""Lines of `notebooks/README.md` between which the tables stand."""


@dataclass(frozen=True)
class Entry:
    """A page in the list."""

    page: str
    """Name of the notebook, without its ending."""
    answer: str
    """One sentence: what the page shows."""
    paper: str = "–"
    """The figures, tables or sections of the paper that it is about."""


@dataclass(frozen=True)
class Part:
    """A part of the list: a heading and its pages."""

    part: str
    pages: tuple[Entry, ...]


def read_toc() -> tuple[Part, ...]:
    """Return the parts in order; none where a workbook has no list. Raises UserError for a bad list."""
    path = _files.home() / "notebooks/_toc.yml"
    if not path.exists():
        return ()
    try:
        parts = parse_yaml(path.read_text(encoding="utf-8"))
        return tuple(Part(p["part"], tuple(Entry(**entry) for entry in p["pages"])) for p in parts)
    except Exception as error:  # ruamel.yaml raises many types
        what = " ".join(str(error).split())[:120]
        wanted = "a list of parts with page, answer and paper"
        raise UserError(f"{path} is not {wanted} ({what})") from None


def index() -> str:
    """Return the list as Markdown: a heading and a table for each part."""
    lines = []
    for part in read_toc():
        lines += [f"## {part.part}", ""]
        lines += ["| page | what it shows | in the paper |", "| :-- | :-- | :-- |"]
        for entry in part.pages:
            lines.append(f"| [{entry.page}]({entry.page}.ipynb) | {entry.answer} | {entry.paper} |")
        lines.append("")
    return "\n".join(lines)


def write_between(page: Path, marks: tuple[str, str], content: str) -> None:
    """Replace what stands between two marks of a file."""
    text = page.read_text(encoding="utf-8")
    head = text.split(marks[0])[0]
    tail = text.split(marks[1])[1]
    _files.write(page, f"{head}{marks[0]}{content}{marks[1]}{tail}")


if __name__ == "__main__":
    write_between(_files.home() / "notebooks/README.md", MARKS, f"\n\n{index()}\n")
