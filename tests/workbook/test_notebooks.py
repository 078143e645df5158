"""The committed notebooks: executed, clean, parameterised; every number in prose has a source."""

import ast
import base64
import re

import nbformat
import numbers_in_text
import pytest
from helpers.workspace import REPOSITORY
from ipykernel.ipkernel import IPythonKernel
from jupyter_client.kernelspec import get_kernel_spec

from softadlib.workbook.pages.notebooks import TRAIN, pages_of_profile, planned_results, read_source
from softadlib.workbook.pages.toc import MARKS, index, read_toc
from softadlib.workbook.studies.params import profile_names
from softadlib.workbook.studies.work import plan_work

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


READ = {path: nbformat.read(path, as_version=4) for path in NOTEBOOKS}
each_page = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code(notebook):
    return [c for c in notebook.cells if c.cell_type == "code"]


def prose(notebook):
    return [c.source for c in notebook.cells if c.cell_type == "markdown"]


def test_the_list_names_every_notebook_once_and_the_index_is_made_of_it():
    listed = [entry.page for part in read_toc() for entry in part.pages]
    assert sorted(listed) == [p.stem for p in NOTEBOOKS]
    text = (REPOSITORY / "notebooks/README.md").read_text(encoding="utf-8")
    between = text.split(MARKS[0])[1].split(MARKS[1])[0]
    assert between.strip() == index().strip(), "python -m softadlib.workbook.pages.toc writes it"


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


@each_page
def test_a_page_uses_what_is_public_and_names_pages_that_exist(path):
    text = "\n".join(cell.source for cell in code(READ[path]))
    assert not re.search(r"softadlib[\w.]*(\._| import _)", text)
    stems = {p.stem for p in NOTEBOOKS}
    starts = {stem.split("_")[0] for stem in stems} - {"train", "recipes"}
    names = re.findall(r"`([a-z0-9-]+)(_[\w-]+)`", "\n".join(prose(READ[path])))
    assert {start + rest for start, rest in names if start in starts} <= stems


@each_page
def test_a_notebook_is_a_page(path):
    notebook = READ[path]
    nbformat.validate(notebook)
    cells = code(notebook)
    executed = [cell.execution_count for cell in cells]
    assert executed == list(range(1, len(cells) + 1)), "from top to bottom"
    assert set(notebook.metadata) <= {"kernelspec", "language_info", "softad"}
    kernel = get_kernel_spec("python3")
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.kernelspec.display_name == kernel.display_name
    language, ours = notebook.metadata.language_info, IPythonKernel.language_info
    assert {**language, "version": ""} == {**ours, "version": ""}, "opening it changes nothing"
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
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr"
    assert any(cell.outputs for cell in cells), "nbval would check nothing"
    assert "**Try** " in "\n".join(prose(notebook)), "a page ends with something to try"
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


@each_page
def test_a_page_answers_first(path):
    cells = READ[path].cells
    first = cells[0].source
    title = first.splitlines()[0]
    assert title.startswith("# ")
    assert title.endswith("?") or title.startswith("# Figure"), title
    assert len(first.split()) <= 120, "the first cell is a question and its answer"
    assert any(shows_picture_or_table(cell) for cell in cells[:4]), "in the first four cells"


@each_page
def test_a_sentence_has_four_numbers_at_most(path):
    for text in prose(READ[path]):
        for sentence in sentences(text):
            without_names = numbers_in_text.REFERENCE.sub(" ", sentence)
            assert len(numbers_in_text.numbers(without_names)) <= 4, sentence


def test_a_sentence_of_five_numbers_is_found():
    text = "In Table 1 of 2024, 1.5 and 2 of 3.\n\nThere are 1, 2, 3, 4\nand 5. Then 6.\n| 7 | 8 |"
    found = [numbers_in_text.numbers(sentence) for sentence in sentences(text)]
    assert found == [[1, 2024, 1.5, 2, 3], [1, 2, 3, 4, 5], [6]]


@each_page
def test_every_figure_has_numbers_beside_it(path):
    """nbval does not compare pictures: a cell with one prints something, itself or right after."""
    cells = code(READ[path])
    for here, after in zip(cells, [*cells[1:], None]):
        if any("image/png" in o.get("data", {}) for o in here.outputs):
            near = here.outputs + (after.outputs if after else [])
            text = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in near]
            printed = " ".join(t for t in text if "Figure size" not in t)
            assert re.search(r"\d", printed), here.source


def test_the_training_page_changes_nothing_by_default():
    cells = code(READ[REPOSITORY / "notebooks" / f"{TRAIN}.ipynb"])
    values = {}
    exec(cells[0].source, values)
    own = ("profile", "dataset", "method", "jobs", "fresh")
    changed = [name for name in values if name not in own and not name.startswith("__")]
    assert [name for name in changed if values[name] is not None] == []
    assert values["fresh"] is False, "nothing is deleted"


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


def test_every_profile_draws_pages_some_of_them_their_own():
    names = {}
    for profile in profile_names():
        pages = pages_of_profile(profile, planned_results(plan_work(profile).studies))
        names[profile] = {page.source.stem for page in pages}
    assert all(names.values())
    assert "figs04-10_trajectories" in names["images"] - names["quick"]
    assert len(names["smoke"]) == 1, "it is drawn in seconds"


def test_pictures_of_the_readme_are_those_of_the_pages():
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"!\[[^\]]*\]\((outputs/[\w/.-]+\.png)\)", text)
    drawn = {
        base64.b64decode(output.data["image/png"])
        for notebook in READ.values()
        for cell in code(notebook)
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    }
    assert named
    for name in named:
        assert (REPOSITORY / name).read_bytes() in drawn, f"{name}: take it from its page anew"
