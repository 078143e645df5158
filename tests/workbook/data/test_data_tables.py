"""Tables: what is read and refused, what each trial draws, and that nothing leaks into training."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from softadlib._validation import MissingData, UserError
from softadlib.trainer.splits import PARTS
from softadlib.workbook.data.data_warnings import doubts_about
from softadlib.workbook.data.datasets import dataset_names, own_digest
from softadlib.workbook.data.make_splits import table_splits
from softadlib.workbook.data.prepare import describe, listing, prepare_table
from softadlib.workbook.data.tables import (
    TABLES,
    Table,
    from_frame,
    read_table,
    table_digest,
    table_file,
)
from softadlib.workbook.studies.load_splits import load_splits
from softadlib.workbook.studies.protocol import Protocol
from softadlib.workbook.studies.train_runs import train_runs

SEEDS = (17716, 961412, 457707)


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def write(root, text, name="mine.csv"):
    (root / name).write_text(text)
    return root / name


HEADER = "age,colour,sick\n"
SMALL = HEADER + "31,red,no\n42.5,blue,yes\n18,red,yes\n7,green,no\n" * 3


# Reading


def test_numbers_words_and_classes(root):
    table = read_table(write(root, SMALL))
    assert table.inputs == ("age", "colour=blue", "colour=green", "colour=red")
    expected = [[31, 0, 0, 1], [42.5, 1, 0, 0], [18, 0, 0, 1], [7, 0, 1, 0]]
    np.testing.assert_array_equal(table.x, expected * 3)
    assert table.is_word.tolist() == [False, True, True, True]
    assert (table.classes, table.y.tolist()) == (("no", "yes"), [0, 1, 1, 0] * 3)


def test_csv_and_parquet_hold_the_same_numbers(root):
    x, y = np.random.default_rng(0).normal(size=(15, 3)), np.arange(15) % 3
    frame = pd.DataFrame(x, columns=["x0", "x1", "x2"]).assign(y=y)
    frame.to_csv(root / "a.csv", index=False)
    frame.to_parquet(root / "b.parquet")
    tables = [read_table(name) for name in ("a.csv", "b.parquet")]
    for table in tables:
        np.testing.assert_array_equal(table.x, x)
        np.testing.assert_array_equal(table.y, y)
    assert len({table.digest for table in tables}) == 1


@pytest.mark.parametrize("target", ["first", "middle", "last"])
def test_the_class_is_no_input_wherever_its_column_stands(target):
    values = np.arange(12)
    frame = pd.DataFrame({"first": values % 2, "middle": values % 2 * 3, "last": values % 2 * 5})
    table = from_frame(frame, target)
    others = [name for name in frame if name != target]
    assert table.inputs == tuple(others)
    np.testing.assert_array_equal(table.x, frame[others])
    assert table.classes == tuple(sorted(map(str, frame[target].unique())))


def test_categories_may_be_called_by_numbers(root):
    """A column that a parquet file declares categorical holds words, as in OpenML's car: 2, 3, 5more."""
    doors = pd.Categorical(["2", "3", "5more", "2"] * 3)
    pd.DataFrame({"doors": doors, "y": [0, 0, 1, 1] * 3}).to_parquet(root / "car.parquet")
    assert read_table("car").inputs == ("doors=2", "doors=3", "doors=5more")


def test_the_digest_is_that_of_names_and_values(root):
    swapped = SMALL.replace("red,no", "red,yes").replace("blue,yes", "blue,no")
    pairs = (("42.5", "42"), ("age", "years"), ("green", "grey"), ("no", "none at all"))
    texts = [SMALL, SMALL + "8,red,no\n", swapped, *(SMALL.replace(*pair) for pair in pairs)]
    digests = [table_digest(write(root, text, f"{i}.csv")) for i, text in enumerate(texts)]
    assert len(set(digests)) == len(texts)
    (root / "elsewhere").mkdir()
    assert table_digest(write(root / "elsewhere", SMALL, "other.csv"), "sick") == digests[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a readable csv file .No columns"),
        ("a;b;y\n1;2;3\n", "holds 1 rows of 1 columns; .* with commas between them"),
        ("a,b,y\n", "holds 0 rows of 3 columns"),
        (",y\n0,1\n1,2\n", "column 0, counted from 0, has no name"),
        ("y,a,y\n0,1,0\n1,2,1\n", "2 columns have the name 'y'; leave one"),
        (
            "a;b;y\n0,1;2,5;3,0\n",
            "more values than its first line has names; .* first line, commas",
        ),
        ("a,y\n1,2\n1,2,3,4\n", "is not a readable csv file .*line 3"),
        ("a,y\n1,0\n,1\n2,0\n,1\n", "column 'a' has 2 missing values, first in line 3; fill them"),
        ('a,b,y\nu,1,0\n\n"v\nw",2,0\nx,,1\n', "column 'b' has 1 missing values, first in line 6"),
        ("a,y\n" + "1,0\n2,1\n" * 5 + "x,0\n", "holds numbers and the text 'x' in line 12"),
        ("a,y\n1,0\n  \n\t\n2,1\n" + "1,0\n2,1\n" * 4 + "x,0\n", "the text 'x' in line 14"),
        ("a,y\n" + "1,0\n2,1\n" * 5 + "inf,0\n", "column 'a' is infinite in line 12"),
        (
            "a,y\n" + "1,0\n2,1\n" * 5 + "-1.7e308,0\n",
            "holds -1.7e.308 in line 12, which is too large",
        ),
        ("a,y\n" + "1e-300,0\n2e-300,1\n" * 5, "differs by 1e-300 at most, too little to standard"),
        ("a;y\n1;0\n2;1\n", "commas between them .there are semicolons between its values."),
        (
            "a,y\n" + f"{2**64},0\n{2**64 + 9},1\n" * 5,
            "column 'a' holds numbers beyond 64 bits, such as 1844674407370955161",
        ),
        ("a,y\n1,0\n2,0\n", "column 'y' holds one class, '0'; give two or more"),
        ("a,y\n" + "1,u\n" * 9 + "2,v\n" * 4, "class 'v' of column 'y' has 4 rows; .* need 5"),
        ("a,y\n" + "1,u\n2,v\n" * 5 + "3,u \n" * 5, "classes 'u ' and 'u' .* differ in spaces"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_its_column(root, text, words):
    with pytest.raises(UserError, match=words) as caught:
        read_table(write(root, text))
    assert "mine.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_files_and_columns_are_refused(root):
    file = write(root, SMALL)
    with pytest.raises(UserError, match=r"class column .target. 'sik' unknown; .* mean 'sick'\?"):
        read_table(file, "sik")
    with pytest.raises(UserError, match=r"format of a table '.txt' unknown; choose from .csv"):
        read_table(write(root, SMALL, "mine.txt"))
    with pytest.raises(UserError, match=r"mine.parquet is not a readable parquet file"):
        read_table(write(root, SMALL, "mine.parquet"))
    (root / "latin.csv").write_bytes("größe,y\n1,0\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"latin.csv is not .* save it as UTF-8"):
        read_table("latin.csv")


def test_a_column_has_at_most_256_words(root):
    rows = [f"w{i},{i % 2}\n" for i in range(257)] * 3
    with pytest.raises(UserError, match="column 'id' holds 257 different words in 771 rows"):
        read_table(write(root, "id,y\n" + "".join(rows)))
    fewer = [row for row in rows if not row.startswith("w256")]
    assert len(read_table(write(root, "id,y\n" + "".join(fewer))).inputs) == 256


def test_a_named_index_of_parquet_is_a_column(root):
    frame = pd.DataFrame({"a": np.arange(12.0), "y": list("uv") * 6, "city": list("pqr") * 4})
    frame.set_index("city").to_parquet(root / "mine.parquet")
    assert read_table("mine.parquet", "y").inputs == ("city=p", "city=q", "city=r", "a")
    frame.set_index("a", drop=False).to_parquet(root / "mine.parquet")
    assert read_table("mine.parquet", "y").inputs == ("a", "city=p", "city=q", "city=r")
    frame.set_index(pd.RangeIndex(12, name="row")).to_parquet(root / "mine.parquet")
    assert "row" not in read_table("mine.parquet", "y").inputs


def test_a_row_of_parquet_is_counted_from_1(root):
    frame = pd.DataFrame({"a": [1.0, np.nan] * 6, "y": list("uv") * 6})
    frame.to_parquet(root / "mine.parquet")
    with pytest.raises(UserError, match="column 'a' has 6 missing values, first in row 2"):
        read_table("mine")


# One row of each column is another word in nearly every row, or a number in disguise.
DISGUISED = {
    "dates": [f"2024-{1 + i // 28:02d}-{1 + i % 28:02d}" for i in range(60)],
    "European dates": [f"{1 + i % 28}.{1 + i // 28}.2024" for i in range(60)],
    "times": [f"{i % 24}:{i % 60:02d}" for i in range(60)],
    "timestamps": [f"2024-01-31 12:{i:02d}:00" for i in range(60)],
    "thousands": [f"{1 + i},000" for i in range(60)],
    "shares": [f"{i % 3}5%" for i in range(60)],
    "prices": [f"${i % 4}.50" for i in range(60)],
    "thousands among numbers": [*map(str, range(940, 999)), "1,000"],
    "dates with a gap": [*(f"2024-01-{1 + i % 28:02d}" for i in range(59)), "unknown"],
    "shares with a gap": [*(f"{i % 3}5%" for i in range(59)), "n.a."],
    "minus of a word processor": [f"−{i % 3}.5" for i in range(60)],
    "Swiss thousands": [f"1'00{i % 5}" for i in range(60)],
    "exponents of Fortran": [f"1.{i % 5}D+02" for i in range(60)],
    "hexadecimal": [f"0x{i % 5:02X}A" for i in range(60)],
    "identifiers": [f"customer {i}" for i in range(60)],
    "free text": [f"remark {i % 40}" for i in range(60)],
}


def test_a_column_of_lists_is_refused(root):
    frame = pd.DataFrame({"a": [[1, 2]] * 12, "y": [0, 1] * 6})
    frame.to_parquet(root / "mine.parquet")
    with pytest.raises(UserError, match=r"column 'a' holds a ndarray"):
        read_table("mine.parquet")
    with pytest.raises(UserError, match=r"column 'a' holds a ndarray"):
        read_table("mine.parquet", "a")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("name", DISGUISED)
def test_a_column_that_is_no_input_is_refused_by_name(root, name, kind):
    frame = pd.DataFrame({"size": range(60), name: DISGUISED[name], "y": ["u", "v"] * 30})
    file = root / f"mine.{kind}"
    if kind == "csv":
        frame.to_csv(file, index=False)
    else:
        frame.to_parquet(file)
    with pytest.raises(UserError, match=f"column '{name}' holds .* [Ll]eave (it|the column) out"):
        read_table(file)


@pytest.mark.parametrize("unit", ["D", "s", "ns"])
def test_dates_of_parquet_are_refused_as_those_of_csv_are(root, unit):
    days = pd.date_range("2024-01-01", periods=60)
    typed = days.date if unit == "D" else days.astype(f"datetime64[{unit}]")
    pd.DataFrame({"day": typed, "y": [0, 1] * 30}).to_parquet(root / "days.parquet")
    with pytest.raises(UserError, match=r"column 'day' holds dates, such as .*leave it out"):
        read_table("days.parquet")


def test_all_columns_that_cannot_be_inputs_are_named_at_once(root):
    rows = [(f"2024-01-{1 + i % 28:02d}", f"{950 + 10 * i:,}", i % 2) for i in range(60)]
    pd.DataFrame(rows, columns=["day", "income", "y"]).to_csv(root / "own.csv", index=False)
    with pytest.raises(UserError) as caught:
        read_table("own.csv")
    said = str(caught.value)
    assert "column 'day' holds dates, such as '2024-01-01' in line 2" in said
    assert "column 'income' holds numbers as text, such as '1,000' in line 7" in said
    assert "\n" not in said


def test_words_that_look_alike_are_said(tmp_path):
    places = ["New York", "New  York", "caf\u00e9", "cafe\u0301"] * 5  # two ways to write é
    file = tmp_path / "mine.csv"
    pd.DataFrame({"place": places, "kind": list("uuv") * 6 + ["u", "v"]}).to_csv(file, index=False)
    alike = "'New  York' and 'New York', 'cafe\u0301' and 'caf\u00e9'"
    assert f"column 'place': {alike} count as different words" in doubts_about("a", table=str(file))


def test_what_may_not_be_meant_is_said(root, tmp_path):
    """Twenty rows by hand, and two more: a copy of the last, and its inputs with the other class."""
    frame = pd.DataFrame(
        {
            "size": [3, 1] * 10,
            "unit": "cm",
            "colour": ["red", "Red", "blue", "?"] * 5,
            "kind": ["u", "u", "u", "v"] * 5,
        }
    ).assign(weight=np.arange(20) / 8)
    frame = pd.concat([frame, frame.tail(1), frame.tail(1).assign(kind="u")])
    frame = frame[["size", "weight", "unit", "colour", "kind"]]
    file = tmp_path / "mine.csv"
    frame.to_csv(file, index=False)
    prepare_table("mine", file)
    notes = [
        "column 'unit' is the same in every row",
        "column 'colour': 'Red' and 'red' count as different words",
        "column 'colour': '?' counts as a word, not as a missing value",
        "1 rows are copies of an earlier row; copies may be in training and test",
        "1 rows have the inputs of another row and another class",
    ]
    said = describe("mine").splitlines()
    assert said[:4] == [
        "22 rows, 7 inputs, 2 classes",
        "classes, column kind: u (16), v (6)",
        "numbers: size, weight",
        "words: unit (1), colour (4)",
    ]
    assert sorted(said[4:]) == sorted(f"note: {note}" for note in notes)
    assert sorted(doubts_about("mine")) == sorted(notes)
    assert sorted(doubts_about("other", table=str(file))) == sorted(notes)
    frame.assign(id=range(7, 29))[["id", "kind"]].to_csv(file, index=False)
    assert doubts_about("mine", table=str(file)) == [
        "column 'id' numbers the rows; leave it out if it names them"
    ]
    assert doubts_about("letter") == doubts_about("digits") == [], "built-in sets are as they are"


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        ("5.1,3.5,Iris\n", ["column '5.1' is called by a number; the first line must be names"]),
        ("0,1,kind\n", []),
        ("5.1,b,c\n", ["column '5.1' is called by a number; the first line must be names"]),
        ("a,b,u\n", ["the target 'u' is one of its classes; the first line must be names"]),
        ("a,b,c\n", []),
    ],
)
def test_a_missing_header_is_said(root, text, notes):
    write(root, text + "".join(f"{i / 8},{i % 3},{'uv'[i % 2]}\n" for i in range(12)))
    assert doubts_about("mine", table="mine.csv") == notes


def test_a_column_that_says_the_class_is_said(root):
    write(root, "code,a,y\n" + "".join(f"{7 + i % 2},{i % 3},{'uv'[i % 2]}\n" for i in range(12)))
    said = doubts_about("mine", table="mine.csv")
    assert said[0] == "column 'code' has one value per class; leave it out if it says the class"
    assert not any("'a'" in line for line in said)


# Names


def test_a_prepared_table_is_read_by_its_name(root, tmp_path):
    file = write(tmp_path, SMALL)
    assert prepare_table("mine", file, "sick") == root / "mine.parquet"
    digests = {
        table_digest(file),
        own_digest("mine"),
        own_digest("a", table=str(file), target="sick"),
    }
    assert digests == {read_table("mine").digest}
    assert ("mine", "prepared", "12 rows, 4 inputs, 2 classes") in listing()
    rows = "u,1\nv,2\nu,3\nv,4\n" * 3
    prepare_table("first", write(tmp_path, f"kind,a\n{rows}"), "kind")
    assert read_table("first").classes == ("u", "v"), "the class column is the last now"


def test_a_table_that_is_refused_leaves_what_was_there(root, tmp_path):
    file = write(tmp_path, SMALL)
    before = prepare_table("mine", file).read_bytes()
    single = write(tmp_path, "a,y\n1,0\n2,0\n", "single.csv")
    for name, path, target, words in (
        *((name, file, "", f"'{name}'") for name in ("spiral", "digits", "letter")),
        ("../x", file, "", "'../x' is no plain name"),
        ("mine", file, "nowhere", "class column .target. 'nowhere' unknown"),
        ("mine", single, "", "single.csv: column 'y' holds one class"),
        ("mine", tmp_path / "gone.csv", "", "gone.csv is no file"),
    ):
        with pytest.raises(UserError, match=words):
            prepare_table(name, path, target, replace=True)
    with pytest.raises(UserError, match=r"mine.parquet is there already; add --replace"):
        prepare_table("mine", file)
    assert [path.read_bytes() for path in root.iterdir()] == [before]
    prepare_table("mine", write(tmp_path, SMALL + "8,red,no\n"), replace=True)
    assert len(read_table("mine").y) == 13
    prepare_table("marketing", file)  # OpenML does not have it
    assert read_table("marketing").classes == ("no", "yes")


def test_built_in_names_are_found_or_said_to_be_missing(root, monkeypatch):
    assert set(TABLES) < set(dataset_names())
    for name, words in (
        ("letter", "letter is not under .*get it: softad data prepare letter "),
        ("marketing", "get it: softad data prepare marketing --from-csv FILE"),
        ("nowhere.csv", "table 'nowhere.csv' is no file under"),
    ):
        with pytest.raises(MissingData, match=words):
            table_file(name)
    (root / "tables").mkdir()
    written = write(root / "tables", SMALL, "letter.csv")
    assert table_file("letter") == written

    def refuse(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr("sklearn.datasets._openml.urlopen", refuse)
    with pytest.raises(
        UserError, match=r"^vowel could not be downloaded from OpenML .*the network.*$"
    ):
        prepare_table("vowel")
    with pytest.raises(UserError, match="table to download 'marketing' unknown"):
        prepare_table("marketing")


def test_openml_is_asked_by_its_own_name(root, monkeypatch):
    """A stand-in for the network answers as `fetch_openml` does: categories, the class anywhere."""

    def fetch(name, **options):
        assert name == "credit-g"
        columns = {"Class": pd.Categorical(list("ab" * 6)), "sex": pd.Categorical(list("mf" * 6))}
        frame = pd.DataFrame({**columns, "f0": range(12)})
        return SimpleNamespace(frame=frame, target_names=["Class"])

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    prepare_table("german")
    table = read_table("german")
    assert (table.inputs, table.classes) == (("sex=f", "sex=m", "f0"), ("a", "b"))


# Splits


def table(n=200, classes=3, seed=0):
    """Two numbers and a column of the words a, b and c; column 0 is the number of the row."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.arange(n), rng.normal(5, 2, n), np.eye(3)[rng.integers(0, 3, n)]])
    words = np.array([False, False, True, True, True])
    inputs = ("row", "number", "word=a", "word=b", "word=c")
    names = tuple(f"c{i}" for i in range(classes))
    return Table(x, np.arange(n) % classes, inputs, words, names)


def rows_of(splits, part, trial, n=200):
    """Numbers of the rows in a part, from the standardised column 0 (mean and deviation are unknown)."""
    values = np.concatenate([splits.part(p, trial)[0][:, 0].double().numpy() for p in PARTS])
    low, high = values.min(), values.max()
    found = splits.part(part, trial)[0][:, 0].double().numpy()
    return np.rint((found - low) / (high - low) * (n - 1)).astype(int)


def test_parts_are_disjoint_and_hold_their_own_rows():
    data = table()
    splits = table_splits(data, SEEDS, (0, 0, 0))
    for trial in range(3):
        parts = [rows_of(splits, part, trial) for part in PARTS]
        assert [len(rows) for rows in parts] == [120, 40, 40]
        assert sorted(np.concatenate(parts).tolist()) == list(range(200))
        for part, rows in zip(PARTS, parts):
            x, y = splits.part(part, trial)
            assert y.tolist() == data.y[rows].tolist()
            np.testing.assert_array_equal(x[:, 2:], data.x[rows, 2:])
        order = np.random.default_rng(SEEDS[trial]).permutation(200)
        np.testing.assert_array_equal(np.concatenate(parts), order)


def test_numbers_are_standardised_as_scikit_learn_does():
    data = table()
    splits = table_splits(data, SEEDS, (0, 0, 0))
    for trial in range(3):
        scaler = StandardScaler().fit(data.x[rows_of(splits, "train", trial), :2])
        for part in PARTS:
            expected = scaler.transform(data.x[rows_of(splits, part, trial), :2])
            np.testing.assert_allclose(splits.part(part, trial)[0][:, :2], expected, atol=1e-6)


def test_what_is_constant_in_training_is_zero_everywhere():
    """A word or a value that no training row holds is unknown, and a network never saw its input."""
    data = table()
    train = rows_of(table_splits(data, SEEDS[:1], (0, 0, 0)), "train", 0)
    x = np.column_stack([data.x, np.ones(200), np.zeros(200)])
    outside = np.setdiff1d(np.arange(200), train)
    x[outside[0], 5], x[outside[1], 6] = 7, 1
    is_word = np.array([*data.is_word, False, True])
    changed = dataclasses.replace(data, x=x, is_word=is_word, inputs=(*data.inputs, "u", "v=w"))
    splits = table_splits(changed, SEEDS[:1], (0, 0, 0))
    assert (splits.x[:, 5:] == 0).all()


@pytest.mark.parametrize(("classes", "noise", "flips"), [(2, 0.1, 12), (5, 0.0, 0), (5, 0.2, 24)])
def test_noise_flips_training_labels_alone(classes, noise, flips):
    data = table(classes=classes)
    clean, noisy = (table_splits(data, SEEDS, (0, 0, 0), q) for q in (0.0, noise))
    assert torch.equal(clean.x, noisy.x)
    for trial in range(3):
        changed = clean.part("train", trial)[1] != noisy.part("train", trial)[1]
        assert changed.sum() == flips
        for part in ("val", "test"):
            assert torch.equal(clean.part(part, trial)[1], noisy.part(part, trial)[1])


def test_flipped_labels_are_uniform_among_the_other_classes():
    data = table(n=6000, classes=4)
    clean, noisy = (table_splits(data, SEEDS, (0, 0, 0), q).y for q in (0.0, 0.5))
    shift = ((noisy - clean) % 4).numpy()
    counts = np.bincount(shift[shift > 0])[1:]  # 5,400 flips: three times 1,800 ± 35
    assert counts.sum() == 3 * 1800
    assert (abs(counts - 1800) < 5 * 35).all()


def test_every_class_is_in_every_training_part():
    y = np.r_[np.zeros(96, int), 1, 1, 2, 2]
    data = Table(np.arange(100.0)[:, None], y, ("a",), np.array([False]), ("0", "1", "2"))
    splits = table_splits(data, range(50), (0, 0, 0))
    assert all(len(splits.part("train", trial)[1].unique()) == 3 for trial in range(50))


def test_what_60_and_20_percent_leave_is_tested_on():
    """Of 203 rows 121 are trained on and 40 validate: rounded down, and the test part has the other 42."""
    splits = table_splits(table(203), SEEDS[:1], (0, 0, 0))
    assert [getattr(splits, part).shape[1] for part in PARTS] == [121, 40, 42]


def test_sizes_that_do_not_fit_are_refused():
    assert table_splits(table(), SEEDS, (100, 20, 0)).test.shape == (3, 40)
    with pytest.raises(UserError, match=r"n_test is 150 \+ 40 \+ 40, but the table has 200 rows"):
        table_splits(table(), SEEDS, (150, 40, 40))
    with pytest.raises(UserError, match="n_train is 2, but the table has 3 classes"):
        table_splits(table(), SEEDS, (2, 0, 0))


def test_a_protocol_draws_its_table(root):
    write(root, "a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    sizes = {"n_train": 0, "n_val": 0, "n_test": 0, "batch_size": 4, "seeds": SEEDS}
    made = SimpleNamespace(dataset="own", folder="", table="mine.csv", target="y", **sizes)
    splits = load_splits(made, 0.2, trials=2)
    assert [tuple(getattr(splits, part).shape) for part in PARTS] == [(2, 12), (2, 4), (2, 4)]
    by_name = SimpleNamespace(**{**vars(made), "dataset": "mine", "table": "", "target": ""})
    prepare_table("mine", root / "mine.csv")
    assert torch.equal(load_splits(by_name, 0.2, trials=2).x, splits.x)
    made.batch_size = 11
    with pytest.raises(UserError, match="own: batch_size 11 leaves a last batch of one of 12"):
        load_splits(made, 0.0)
    made.table = "gone.csv"
    with pytest.raises(MissingData, match=r"own: table 'gone.csv' is no file under"):
        load_splits(made, 0.0)


# Training


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # only 30 epochs
def test_a_perceptron_is_at_least_as_accurate_as_scikit_learns(root):
    """Two layers of 256 on digits, Adam with the same step and batch, the same rows, 30 epochs."""
    file = root / "digits.csv"
    load_digits(as_frame=True).frame.to_csv(file, index=False)
    values = {"profile": "p", "dataset": "mine", "table": str(file), "model": "mlp2x256"}
    values |= {"epochs": 30, "trials": 1, "batch_size": 100, "device": "cpu"}
    protocol = Protocol(**values | dict.fromkeys(("n_train", "n_val", "n_test"), 0))
    ours = train_runs(protocol, protocol.runs("erm"), {protocol.epochs})
    splits = load_splits(protocol, 0.0)
    network = MLPClassifier((256, 256), batch_size=100, max_iter=30, alpha=0, random_state=0)
    network.fit(*splits.part("train"))
    assert ours["acc_test"].item() >= network.score(*splits.part("test"))
