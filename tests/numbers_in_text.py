"""List every number in the prose of notebooks and READMEs, and where it comes from.

    python tests/numbers_in_text.py            all of them
    python tests/numbers_in_text.py --unknown  those whose source is not found; exit status 1 if there are any

A number is looked for, in this order, in the name of a figure, table, section, equation or work of the
literature ("reference"), in the code of its notebook ("code"), in the notebook's stored outputs
("output"), in the generated tables of its README ("table"), in the stored outputs of the notebooks that
the same paragraph of a README links ("linked"), in the paper's tables and text ("paper"), in `params/`
("params"), in `outputs/bench` ("bench"), and in `tests/numbers_explained.yaml`, which gives a reason for
each of the rest ("explained").
Numbers count as equal if they agree to the digits written; per cents may stand for shares.
Code, formulas, links and generated blocks of READMEs are not prose.
"""

import functools
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parent.parent
NUMBER = re.compile(r"(?<![\w.])[−-]?\d[\d,]*(?:\.\d+)?(?:e[−-]?\d+)?(?![\w])|(?<![\w\d])\.\d+")
NOT_PROSE = (
    r"<!-- (?!end)[^>]*-->.*?<!-- end.*?-->",  # written by a command from stored rows
    r"<!--.*?-->",
    r"```.*?```",
    r"`[^`]*`",
    r"\$\$.*?\$\$",
    r"\$[^$]+\$",
    r"\]\([^)]*\)",
    r"https?://\S+",
    r"(?m)^\d+\. ",  # the number of a list's item
)
REFERENCE = re.compile(
    r"(?:Figs?\.|Figures?|[Pp]oints?|Tables?|Sec\.|Section|App\.|Propositions?|Theorem|eqs?\.|Eqs?\.|row|rows|Issue|rule|Rule"
    r"|[Cc]ells?|Python|torch|PyTorch|L2|v)"
    r"\s*\(?[A-Z]?\.?[\d.,–\-()and \s]*\d\)?|\(\d{4}\)|\b(?:19|20)\d\d\b|\b[A-Z]\.\d+(?:\.\d+)?"
)
WORDS = 10
"""Whole numbers up to this one count things at hand, as words would."""


class ProseNumber(NamedTuple):
    """One number of a text."""

    file: str
    text: str
    source: str
    """Empty where none is found."""
    context: str


def value(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


def decimals(text: str) -> int:
    """Digits after the point, of a number without exponent."""
    return len(text.partition(".")[2].partition("e")[0])


def numbers(text: str) -> list[float]:
    """Every number in a text."""
    return [value(match[0]) for match in NUMBER.finditer(text)]


def agrees(text: str, known: float, percent: bool) -> bool:
    """True where `known` rounds to the number as it is written, or the share `known` to its per cent."""
    number, half = abs(value(text)), 0.5000001 * 10 ** -decimals(text)
    if "e" in text:
        return math.isclose(number, abs(known), rel_tol=0.1)
    if percent and abs(number - 100 * abs(known)) <= half:
        return True
    if text.isdigit() and not percent:  # a count
        return number == abs(known)
    return abs(number - abs(known)) <= half


def prose(text: str) -> str:
    """The text without what is not prose, positions kept."""
    for pattern in NOT_PROSE:
        text = re.sub(pattern, lambda m: " " * len(m[0]), text, flags=re.S)
    return text


def strings(node: object) -> Iterator[str]:
    """Every text and number inside a JSON or YAML document."""
    if isinstance(node, dict):
        for key, child in node.items():
            yield str(key)
            yield from strings(child)
    elif isinstance(node, list):
        for child in node:
            yield from strings(child)
    elif not isinstance(node, bool) and node is not None:
        yield str(node)


@functools.cache
def shared() -> dict[str, list[float]]:
    """Numbers that any text may name, by source."""
    tables = (ROOT / "softadlib/workbook/analysis/paper_tables.csv").read_text(encoding="utf-8")
    params = [yaml.safe_load(p.read_text()) for p in sorted((ROOT / "params").glob("*/**/*.yaml"))]
    bench = [json.loads(p.read_text()) for p in sorted((ROOT / "outputs/bench").glob("*.json"))]
    return {
        "paper": numbers(tables),
        "params": numbers(" ".join(strings(params))),
        "bench": numbers(" ".join(strings(bench))),
    }


@functools.cache
def explained() -> dict[str, dict[str, str]]:
    """File → number as written → why it is right."""
    return yaml.safe_load((ROOT / "tests/numbers_explained.yaml").read_text(encoding="utf-8"))


@functools.cache
def outputs_of(path: Path) -> list[float]:
    """The numbers of a notebook's stored outputs."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = [o for c in cells if c["cell_type"] == "code" for o in c["outputs"]]
    for output in outputs:
        for kind in ("image/png", "image/svg+xml", "text/html"):
            output.get("data", {}).pop(kind, None)
    return numbers("\n".join("".join(s) for s in strings(outputs)))


def linked(path: Path, text: str) -> list[float]:
    """The numbers in the stored outputs of the notebooks that a text links."""
    found = (path.parent / name for name in re.findall(r"\]\(([\w./-]+\.ipynb)\)", text))
    return [number for page in found if page.exists() for number in outputs_of(page.resolve())]


def sources(path: Path) -> list[tuple[str, dict[str, list[float]]]]:
    """The texts of a file, each with the numbers that it may name beside those of `shared`."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        tables = numbers("\n".join(re.findall(NOT_PROSE[0], text, flags=re.S)))
        blocks = re.sub(NOT_PROSE[0], "", text, flags=re.S).split("\n\n")
        return [(block, {"table": tables, "linked": linked(path, block)}) for block in blocks]
    cells = json.loads(text)["cells"]
    own = {
        "code": numbers("\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")),
        "output": outputs_of(path),
    }
    texts = ["".join(c["source"]) for c in cells if c["cell_type"] == "markdown"]
    return [(text, own | {"linked": linked(path, text)}) for text in texts]


def numbers_of(path: Path) -> Iterator[ProseNumber]:
    """Every number in the prose of a notebook or README with its source."""
    name = str(path.relative_to(ROOT))
    for text, own in sources(path):
        plain = prose(text)
        references = [match.span() for match in REFERENCE.finditer(plain)]
        for match in NUMBER.finditer(plain):
            written, position = match[0].rstrip(","), match.start()
            source = ""
            if any(start <= position < end for start, end in references):
                source = "reference"
            elif written.isdigit() and int(written) <= WORDS:
                source = "counting"
            else:
                percent = plain[match.end() :].lstrip("\u00a0 ").startswith("%")
                for place, values in (own | shared()).items():
                    if any(agrees(written, number, percent) for number in values):
                        source = place
                        break
                else:
                    if written in explained().get(name, {}):
                        source = "explained"
            context = " ".join(text[max(0, position - 50) : match.end() + 30].split())
            yield ProseNumber(name, written, source, context)


def texts() -> list[Path]:
    """Every notebook, and every README outside of the CHANGELOG."""
    folders = ("", "notebooks", "params", "outputs", "outputs/*", "softadlib")
    readmes = [path for folder in folders for path in ROOT.glob(f"{folder}/README.md".lstrip("/"))]
    return [*sorted(readmes), *sorted((ROOT / "notebooks").glob("*.ipynb"))]


def main() -> int:
    """Print them; with --unknown only those without a source."""
    listed = [number for path in texts() for number in numbers_of(path)]
    unknown = [number for number in listed if not number.source]
    for number in unknown if "--unknown" in sys.argv else listed:
        print(f"{number.file}: {number.text}: {number.source or 'UNKNOWN'}: {number.context}")
    print(f"{len(listed)} numbers, {len(unknown)} without a source")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
