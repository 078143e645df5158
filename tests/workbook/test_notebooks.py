"""The committed notebooks: executed, clean, parameterised; every number in prose has a source."""

import ast
import re

import nbformat
import numbers_in_text
import pytest
from helpers.workspace import REPOSITORY
from ipykernel.ipkernel import IPythonKernel
from jupyter_client.kernelspec import get_kernel_spec

from softadlib.training.profiles import datasets_of, load, profile_names
from softadlib.workbook.notebooks import TRAIN, pages_of_profile, read_source
from softadlib.workbook.toc import MARKS, index, read_toc

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


def code(notebook):
    return [c for c in notebook.cells if c.cell_type == "code"]


def test_the_list_names_every_notebook_once_and_the_index_is_made_of_it():
    listed = [entry.page for part in read_toc() for entry in part.pages]
    assert sorted(listed) == [p.stem for p in NOTEBOOKS]
    text = (REPOSITORY / "notebooks/README.md").read_text(encoding="utf-8")
    between = text.split(MARKS[0])[1].split(MARKS[1])[0]
    assert between.strip() == index().strip(), "python -m softadlib.workbook.toc writes it"


def test_a_page_says_whose_results_it_draws():
    """One that reads results of a profile names profiles in its metadata; of others there are none."""
    for path in NOTEBOOKS:
        source = read_source(path)
        if path.stem != TRAIN:
            assert bool(source.profiles) == any("profile" in n for n in source.parameters), (
                path.stem
            )
        if source.profiles != "all":
            assert set(source.profiles) <= set(profile_names()), path.stem


def test_pages_use_what_is_public():
    for path in NOTEBOOKS:
        text = "\n".join(cell.source for cell in code(nbformat.read(path, as_version=4)))
        assert not re.search(r"softadlib[\w.]*(\._| import _)", text), path.stem


def test_pages_refer_to_pages_that_exist():
    stems = {p.stem for p in NOTEBOOKS}
    starts = {s.split("_")[0] for s in stems} - {"train", "recipes", "choosing"}
    for path in NOTEBOOKS:
        text = " ".join(
            c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "markdown"
        )
        names = re.findall(r"`([\w-]+)`", text)
        assert {n for n in names if n.split("_")[0] in starts and "_" in n} <= stems, path.stem


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_a_page(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = code(notebook)
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1)), (
        "not executed from top to bottom"
    )
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) <= {"kernelspec", "language_info", "softad"}
    assert notebook.metadata.kernelspec.display_name == get_kernel_spec("python3").display_name
    language = {k: v for k, v in notebook.metadata.language_info.items() if k != "version"}
    ours = {k: v for k, v in IPythonKernel.language_info.items() if k != "version"}
    assert language == ours, "as JupyterLab saves it: opening the page changes nothing"
    assert notebook.cells[0].source.startswith("# "), "a title first"
    tagged = [i for i, c in enumerate(cells) if "parameters" in c.metadata.get("tags", [])]
    assert tagged == [0], "exactly one parameters cell, the first code cell"
    for statement in ast.parse(cells[0].source).body:
        assert isinstance(statement, ast.AnnAssign), "name: type = literal, nothing else"
        ast.literal_eval(statement.value)
    for line in cells[0].source.splitlines():
        assert line.count("=") <= 1, f"{line!r}: papermill drops a line with a second `=`"
    for cell in cells:
        assert set(cell.metadata) <= {"jupyter", "tags"}, "no execution or papermill metadata"
        assert len(cell.source.splitlines()) <= 40, "longer than a screen"
        assert not any(o.output_type == "error" for o in cell.outputs)
        assert not any(o.get("name") == "stderr" for o in cell.outputs)
        assert not any("image/svg+xml" in o.get("data", {}) for o in cell.outputs)
    assert any(c.outputs for c in cells), "nbval would check nothing"
    prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    assert "**Try** " in prose, "a page ends with something to try"
    assert path.stat().st_size < 1_500_000


TABLE = re.compile(r"^\|[ :|-]+\|$", re.M)
"""The line below the head of a table in Markdown."""


def shows_picture_or_table(cell):
    if cell.cell_type == "markdown":
        return bool(TABLE.search(cell.source))
    data = [output.get("data", {}) for output in cell.get("outputs", [])]
    return any("image/png" in d or "<table" in d.get("text/html", "") for d in data)


NAMES = r"(?:CIFAR|ResNet)-\d+"


def sentences(markdown):
    """Sentences of a cell's prose, without names of data and networks; a table has none."""
    for pattern in (*numbers_in_text.NOT_PROSE, NAMES):
        markdown = re.sub(pattern, " ", markdown, flags=re.S)
    lines = ["" if line.startswith("|") else line for line in markdown.splitlines()]
    ends = r"\n\s*\n|\n(?=\s*[-*] )|(?<=[.?!])[*_)]*\s+(?=[^a-z0-9])"
    return re.split(ends, "\n".join(lines))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_page_answers_first(path):
    cells = nbformat.read(path, as_version=4).cells
    first = cells[0].source
    title = first.splitlines()[0]
    assert title.endswith("?") or title.startswith("# Figure"), title
    assert len(first.split()) <= 120, "the first cell is a question and its answer"
    assert any(shows_picture_or_table(cell) for cell in cells[:4]), "in the first four cells"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_sentence_has_four_numbers_at_most(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            for sentence in sentences(cell.source):
                without_names = numbers_in_text.REFERENCE.sub(" ", sentence)
                assert len(numbers_in_text.numbers(without_names)) <= 4, sentence


def test_a_sentence_of_five_numbers_is_found():
    text = "In Table 1 of 2024, 1.5 and 2 of 3.\n\nThere are 1, 2, 3, 4\nand 5. Then 6.\n| 7 | 8 |"
    found = [numbers_in_text.numbers(sentence) for sentence in sentences(text)]
    assert found == [[1, 2024, 1.5, 2, 3], [1, 2, 3, 4, 5], [6]]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_figure_has_numbers_beside_it(path):
    """nbval does not compare pictures: a cell with one prints something, itself or right after."""
    cells = code(nbformat.read(path, as_version=4))
    for here, after in zip(cells, [*cells[1:], None]):
        if any("image/png" in o.get("data", {}) for o in here.outputs):
            near = here.outputs + (after.outputs if after else [])
            text = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in near]
            assert re.search(r"\d", " ".join(t for t in text if "Figure size" not in t)), (
                here.source
            )


def test_the_training_page_changes_nothing_by_default():
    cells = code(nbformat.read(REPOSITORY / "notebooks" / f"{TRAIN}.ipynb", as_version=4))
    values = {}
    exec(cells[0].source, values)
    own = {"profile", "dataset", "method", "jobs", "fresh", "__builtins__", "__annotations__"}
    assert {
        name: value for name, value in values.items() if value is not None and name not in own
    } == {}
    assert values["fresh"] is False, "nothing is deleted"
    runs = load(values["profile"], values["dataset"]).runs(values["method"])
    assert f"{len(runs)} runs " in cells[1].outputs[0]["text"]


def test_every_number_in_prose_has_a_source():
    """`python tests/numbers_in_text.py` lists them; every explained number is in a text."""
    numbers = [
        number for path in numbers_in_text.texts() for number in numbers_in_text.numbers_of(path)
    ]
    assert len(numbers) > 400
    assert [number for number in numbers if not number.source] == []
    used = {(number.file, number.text) for number in numbers if number.source == "explained"}
    explained = {
        (file, text) for file, texts in numbers_in_text.explained().items() for text in texts
    }
    assert explained == used, "an explained number that no text has"


def test_a_changed_number_in_prose_is_found_out(tmp_path, monkeypatch):
    path = REPOSITORY / "notebooks" / "fig11_linear_classifier.ipynb"
    changed = tmp_path / "notebooks" / path.name
    changed.parent.mkdir()
    changed.write_text(path.read_text().replace("errs on 484 points", "errs on 485 points"))
    explained = numbers_in_text.explained()
    monkeypatch.setattr(numbers_in_text, "explained", lambda: explained)
    shared = numbers_in_text.shared()
    monkeypatch.setattr(numbers_in_text, "shared", lambda: shared)
    monkeypatch.setattr(numbers_in_text, "ROOT", tmp_path)
    assert [n.text for n in numbers_in_text.numbers_of(changed) if not n.source] == ["485"]


def test_every_committed_profile_draws_pages():
    for profile in profile_names():
        assert pages_of_profile(profile, datasets_of(profile)[:1]), profile


def test_two_profiles_have_pages_of_their_own():
    names = {
        p: {page.name for page in pages_of_profile(p, [])} for p in ("images", "smoke", "quick")
    }
    assert "figs04-10_trajectories" in names["images"] - names["quick"]
    assert len(names["smoke"]) == 1, "it is drawn in seconds"
