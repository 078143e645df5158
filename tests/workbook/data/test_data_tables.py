"""Tables: what is read and refused, what each trial draws, and that nothing leaks into training."""

import dataclasses
import os
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.refusals import refused
from sklearn.datasets import load_digits
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from softadlib._validation import MissingData, UserError
from softadlib.trainer.splits import PARTS
from softadlib.workbook.data import columns, tables
from softadlib.workbook.data.data_warnings import data_warnings
from softadlib.workbook.data.datasets import data_of, dataset_names
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


SMALL = "age,colour,sick\n" + "31,red,no\n42.5,blue,yes\n18,red,yes\n7,green,no\n" * 3


def column(values, name="a"):
    """A CSV file of one input and a class."""
    rows = [f'"{value}",{"uv"[i % 2]}\n' for i, value in enumerate(values)]
    return f"{name},y\n" + "".join(rows)


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


TWINS = ("caf\u00e9", "cafe\u0301", "tea")
"""Two spellings of one word that look the same, and another word."""


@pytest.mark.parametrize("target", ["first", "middle", "last"])
def test_the_class_is_no_input_wherever_its_column_stands(target):
    values = np.arange(12)
    frame = pd.DataFrame({"first": values % 2, "middle": values % 2 * 3, "last": values % 2 * 5})
    table = from_frame(frame, target)
    others = [name for name in frame if name != target]
    assert table.inputs == tuple(others)
    np.testing.assert_array_equal(table.x, frame[others])
    assert table.classes == tuple(sorted(map(str, frame[target].unique())))


# Twenty values each, and the first three as numbers.
NUMBERS = {
    "plain": (["-1", " 2.5", "3e2"] + ["4"] * 17, [-1, 2.5, 300]),
    "thousands": (["1,000", "12,345.5", "999"] + ["1"] * 17, [1000, 12345.5, 999]),
    "per cent": (["5%", "12.5 %", "100%"] + ["1%"] * 17, [5, 12.5, 100]),
    "money": (["$1.50", "-$2", "$1,000"] + ["$3"] * 17, [1.5, -2, 1000]),
    "decimals below one": (["0,125", "0,250", "1"] + ["0,500"] * 17, [0.125, 0.25, 1]),
    "decimal commas": (["1,5", "2,25", "1.000,5"] + ["3,0"] * 17, [1.5, 2.25, 1000.5]),
    "Swiss thousands": (["1'000", "2’500", "3"] + ["4"] * 17, [1000, 2500, 3]),
    "spaces": (["1\u00a0000", "2 500", "3"] + ["4"] * 17, [1000, 2500, 3]),
    "a word processor's minus": (["−1.5", "−2", "3"] + ["4"] * 17, [-1.5, -2, 3]),
    "with gaps": (["1,000", "?", "", ".", "NA"] + ["5"] * 15, [1000, np.nan, np.nan]),
}
WORDS = {
    "codes": ["007", "038", "120"] * 8,
    "codes with a letter": ["A1", "0B", "7"] * 8,
    "truth values": ["True", "False", "True"] * 8,
    "numbers and words": ["2", "3", "5more"] * 8,
    "version numbers": ["1.0.2", "1.1.0", "2.0.0"] * 8,
}
DATES = {
    "ISO": [f"2024-{1 + i // 28:02d}-{1 + i % 28:02d}" for i in range(60)],
    "European": [f"{1 + i % 28}.{1 + i // 28}.2024" for i in range(60)],
    "American": [f"{1 + i // 28}/{1 + i % 28}/2024" for i in range(60)],
    "in words": [
        f"{1 + i % 28} {['January', 'February', 'March'][i // 28]} 2024" for i in range(60)
    ],
}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_read_as_people_write_them(root, name, kind):
    """A parquet file holds the same text, where only an empty value and those below are missing."""
    values, expected = NUMBERS[name]
    frame = pd.DataFrame({"a": values, "y": list("uv") * 10})
    if kind == "csv":
        frame.to_csv(root / "mine.csv", index=False)
    else:
        frame.replace("NA", None).to_parquet(root / "mine.parquet")
    table = read_table(f"mine.{kind}")
    assert table.inputs[0] == "a"
    np.testing.assert_array_equal(table.x[:3, 0], expected)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("name", WORDS)
def test_codes_and_words_stay_words(root, name, kind):
    values = WORDS[name]
    frame = pd.DataFrame({"a": values, "y": list("uv") * 12})
    getattr(frame, f"to_{kind}")(root / f"mine.{kind}", index=False)
    table = read_table(f"mine.{kind}")
    assert table.inputs == tuple(f"a={word}" for word in sorted(set(values)))
    assert table.is_word.all()


@pytest.mark.parametrize("name", DATES)
def test_dates_become_their_parts(root, name):
    table = read_table(write(root, column(DATES[name])))
    assert table.inputs == ("a_year", "a_month", "a_day", "a_total_seconds")
    days = pd.date_range("2024-01-01", periods=60)  # each month has 28 days here
    assert table.x[30].tolist()[:3] == [2024, 2, 3]
    assert table.x[1, 3] - table.x[0, 3] == pytest.approx(86400, abs=128)  # float32
    typed = days.date if name == "ISO" else days
    pd.DataFrame({"a": typed, "y": list("uv") * 30}).to_parquet(root / "typed.parquet")
    assert read_table("typed.parquet").x[40].tolist()[:3] == [2024, 2, 10]


def test_times_of_a_date_are_parts_too(root):
    table = read_table(write(root, column([f"2024-01-31 12:{i:02d}:30" for i in range(20)])))
    parts = dict(zip(table.inputs, table.x[7]))
    assert [parts[f"a_{part}"] for part in ("hour", "minute", "second")] == [12, 7, 30]


def test_missing_values_stay_missing_and_have_an_input(root):
    text = "size,colour,day,y\n" + "1,red,2024-01-02,u\n,?,,v\n3,blue,2024-02-05,u\n4,red,,v\n" * 3
    table = read_table(write(root, text))
    inputs = dict(zip(table.inputs, table.x[:4].T.tolist()))
    assert np.isnan(inputs.pop("size")[1])
    assert [np.isnan(value) for value in inputs["day_month"]] == [False, True, False, True]
    assert inputs["size is missing"] == [0, 1, 0, 0]
    assert inputs["day is missing"] == [0, 1, 0, 1]
    colours = ("colour=blue", "colour=red", "colour is missing")
    assert [inputs[name] for name in colours] == [[0, 0, 1, 0], [1, 0, 0, 1], [0, 1, 0, 0]]


def test_categories_may_be_called_by_numbers(root):
    """A column that a parquet file declares categorical holds words, as in OpenML's car: 2, 3, 5more."""
    doors = pd.Categorical(["2", "3", "4", "2"] * 3)
    pd.DataFrame({"doors": doors, "y": [0, 0, 1, 1] * 3}).to_parquet(root / "car.parquet")
    assert read_table("car").inputs == ("doors=2", "doors=3", "doors=4")


def test_the_digest_is_that_of_names_and_values(root):
    notes = "".join(f"{i},note {i} of many,{'uv'[i % 2]}\n" for i in range(40))
    texts = [
        SMALL,
        SMALL + "8,red,no\n",
        SMALL.replace("yes", "no", 1).replace("no", "yes", 1),
        "a,b,y\n" + notes,
    ]
    texts.append(texts[-1].replace("note 7 ", "nota 7 "))
    pairs = (
        ("42.5", "42"),
        ("42.5", ""),
        ("age", "years"),
        ("green", "grey"),
        ("no", "none at all"),
    )
    texts += [SMALL.replace(*pair) for pair in pairs]
    digests = [table_digest(write(root, text, f"{i}.csv")) for i, text in enumerate(texts)]
    assert len(set(digests)) == len(texts)
    (root / "elsewhere").mkdir()
    assert table_digest(write(root / "elsewhere", SMALL, "other.csv"), "sick") == digests[0]


def test_a_column_of_more_than_256_words_is_text(root):
    rows = [f"w{i},{i % 2}\n" for i in range(257)] * 3
    table = read_table(write(root, "id,y\n" + "".join(rows)))
    assert (table.inputs, list(table.texts), table.width) == ((), ["id"], 30)
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


def test_spaces_blank_lines_and_trailing_commas_are_nothing(root):
    plain = read_table(write(root, SMALL))
    for text in (
        SMALL.replace(",", ", "),
        SMALL.replace("42.5", "\n  \n,,\n42.5"),
        SMALL.replace("\n", ",\n"),
        SMALL.replace("\n", "\r\n"),
        "\ufeff" + SMALL,
    ):
        (root / "mine.csv").write_text(text, encoding="utf-8", newline="")
        assert read_table("mine.csv").digest == plain.digest
    wordy = column(["one\ntwo", "three\nfour, five", "six"] * 8)
    assert read_table(write(root, wordy, "wordy.csv")).inputs[0] == "a=one\ntwo"


# Refusals


GOOD = "a,b,y\n" + "".join(f"{i},{i % 3},{'uv'[i % 2]}\n" for i in range(60))
TWENTY = "1,u\n2,v\n" * 10


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # The file
        ("", ["is not a readable csv file (No columns"]),
        ("a,b,y\n", ["0 rows of 3 columns"]),
        ("a;b;y\n1;2;u\n", ["1 row of 1 column, 'a;b;y'", "commas between them"]),
        (
            "a;b;y\n0,1;2,5;3,0\n",
            ["more values than its first line, 'a;b;y', has names", "semicolons"],
        ),
        ("# by a tool\n" + GOOD, ["more values than its first line, '# by a tool', has names"]),
        (GOOD + "1,2,3,4\n", ["Expected 3 fields in line 62, saw 4"]),
        (",y\n" + TWENTY, ["1 column has no name", "leave them out"]),
        ("y,a,y\n0,1,0\n1,2,1\n", ["2 columns have the name 'y'", "leave them out"]),
        (
            GOOD.replace("30,0,u", "# half time"),
            ["column 'a'", "the text '# half time' in line 32", "missing values, first in line 32"],
        ),
        (GOOD + GOOD, ["column 'a' holds numbers and the text 'a' in line 62", "'y' (1)"]),
        (
            GOOD.replace("15,0,v", '15,"0,v').replace("40,1,u", '40,1",u'),
            ["column 'b' of line 17", "26 lines"],
        ),
        # A file without a line of names
        ("0.5,7,u\n" + GOOD.removeprefix("a,b,y\n"), ["line 1, '0.5, 7, u', is a row"]),
        ("5.1,3.5,u\n" + GOOD.removeprefix("a,b,y\n"), ["line 1, '5.1, 3.5, u', is a row"]),
        ("red,1.5,u\n" + "red,2,v\nblue,3,u\n" * 9, ["line 1, 'red, 1.5, u', is a row"]),
        ("2024-01-05,2,u\n" + "2024-02-07,2,v\n2024-03-31,3,u\n" * 9, ["is a row"]),
        # Columns
        ("a,y\n" + TWENTY + "x,u\n", ["column 'a'", "the text 'x' in line 22"]),
        ("a,y\n1,u\n  \n\t\n2,v\n" + TWENTY + "x,u\n", ["the text 'x' in line 26"]),
        ('a,b,y\n1,"v\nw",u\n' + "2,w,v\n" * 20 + "x,w,v\n", ["the text 'x' in line 24"]),
        (GOOD.replace("a,b,y\n", "a,b,y\ncm,kg,\n"), ["'cm' in line 2", "'kg' in line 2", "'y'"]),
        (column(["5%"] * 19 + ["0.1"]), ["more than one way", "'5%' and '0.1' in line 21"]),
        (
            column(["1,234.50"] * 19 + ["1.234,50"]),
            ["more than one way", "'1,234.50' and '1.234,50' in line 21"],
        ),
        ("a,y\n" + TWENTY + "inf,u\n", ["column 'a' holds inf in line 22"]),
        ("a,y\n" + TWENTY + "-1.7e308,u\n", ["holds -1.7e+308 in line 22", "too large"]),
        # Classes
        ("a,y\n" + "1,u\n" * 9, ["column 'y' holds one class, 'u'"]),
        ("a,y\n" + TWENTY + "1,w\n" * 4, ["fewer than 5 rows", "'w' (4)", "join them"]),
        ("a,y\n" + "".join(f"{i},{i}\n" for i in range(30)), ["'1' (1)", "to predict a number"]),
        ("a,y\n" + TWENTY + "1,\n2,?\n", ["class column 'y' has 2 missing", "line 22"]),
    ],
)
def test_what_cannot_be_read_is_one_line_with_its_column(root, text, words):
    file = write(root, text)
    refused(lambda: read_table(file), "mine.csv", *words, kind=UserError)


def test_five_rows_are_enough_for_a_class(root):
    assert read_table(write(root, "a,y\n" + TWENTY + "1,w\n" * 5)).classes == ("u", "v", "w")


def test_all_faults_of_a_table_are_named_at_once(root):
    text = "a,b,c,y\n" + "".join(f"{i},{i}.5,{i},{'uv'[i % 2]}\n" for i in range(40))
    text = (
        text.replace("\n7,", "\nseven,")
        .replace("9.5", "9kg")
        .replace("\n11,11.5,11,v", "\n11,1,inf,")
    )
    file = write(root, text)
    words = [
        "'seven' in line 9",
        "'9kg' in line 11",
        "inf in line 13",
        "1 missing values, first in line 13",
    ]
    refused(lambda: read_table(file), *words, kind=UserError)
    many = pd.DataFrame({f"c{i}": ["1"] * 19 + ["x"] for i in range(9)}).assign(y=list("uv") * 10)
    many.to_csv(file, index=False)
    refused(lambda: read_table(file), "column 'c5'", "; and 3 more", kind=UserError)


def test_other_files_and_columns_are_refused(root):
    file = write(root, SMALL)
    (root / "latin.csv").write_bytes("größe,y\n1,0\n".encode("latin-1"))
    frame = pd.DataFrame({"a": [[1, 2]] * 12, "b": [1.0] * 11 + [np.inf], "y": [0, 1] * 6})
    frame.to_parquet(root / "lists.parquet")
    for name, target, words in (
        (file, "sik", ["class column (target) 'sik' unknown", "mean 'sick'?"]),
        (write(root, SMALL, "mine.txt"), "", ["format of a table '.txt' unknown", ".csv"]),
        (write(root, SMALL, "a.parquet"), "", ["a.parquet is not a readable parquet file"]),
        ("latin.csv", "", ["latin.csv is not", "save a table as UTF-8"]),
        ("lists.parquet", "", ["column 'a' holds a ndarray", "column 'b' holds inf in row 12"]),
        ("lists.parquet", "a", ["column 'a' holds a ndarray"]),
    ):
        refused(lambda name=name, target=target: read_table(name, target), *words, kind=UserError)


@pytest.mark.skipif(sys.platform != "linux", reason="a file system may allow UTF-8 alone")
def test_a_file_may_have_any_name(root):
    """Also one that is no UTF-8, which pyarrow itself cannot open."""
    pd.DataFrame({"a": range(12), "y": list("uv") * 6}).to_parquet(root / "a.parquet")
    name = os.fsdecode(b"h\xf6he.parquet")
    os.replace(root / "a.parquet", root / name)
    assert len(read_table(name).y) == 12


# Warnings


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        (GOOD.replace("0,0,u", "7,0,u", 1), []),
        ("400.5,402.5,kind\n" + GOOD.removeprefix("a,b,y\n").replace("0,0,u", "7,0,u", 1), []),
        ("0,1,2\n" + "".join(f"{i % 7},{i / 8},{i % 3}\n" for i in range(60)), []),
        (GOOD, ["column 'a' numbers the rows; leave it out if it names them"]),
        (
            column(["007", "08", "1"] * 9),
            ["column 'a' has leading zeros, such as '007'", "21 rows are copies"],
        ),
        (
            column(f"customer {i}" for i in range(60)),
            ["column 'a' has 60 different words, such as 'customer 0'"],
        ),
        (
            "code,a,y\n" + "".join(f"{7 + i % 2},{i / 8},{'uv'[i % 2]}\n" for i in range(12)),
            ["'code'"],
        ),
        (  # two values and two classes, but each class has both
            "code,a,y\n" + "".join(f"{7 + i // 2 % 2},{i / 8},{'uv'[i % 2]}\n" for i in range(12)),
            [],
        ),
        (
            "text,spam\n" + "".join(f"buy {i},{('ham', 'spam')[i % 2]}\n" for i in range(40)),
            ["'text'"],
        ),
        (
            "a,y\n" + "".join(f"{i / 8},{('Yes', 'yes', 'no')[i % 3]}\n" for i in range(30)),
            ["the classes Yes, yes differ in spelling alone"],
        ),
        (
            "a,y\n" + "".join(f"{i / 8},{('0', '1', '0.0', '1.0')[i % 4]}\n" for i in range(32)),
            ["the classes 0, 0.0 differ in spelling alone", "the classes 1, 1.0 differ"],
        ),
        (
            "a,y\n" + "".join(f"{i / 8},{TWINS[i % 3]}\n" for i in range(30)),
            [r"the classes 'cafe\u0301', 'caf\xe9' differ in spelling alone"],
        ),
        (
            "a,y\n" + "".join(f"{i / 8 if i % 5 else -999},{'uv'[i % 2]}\n" for i in range(30)),
            ["column 'a' holds -999 in 6 rows, far from all others", "4 rows are copies"],
        ),
        ("a,y\n" + "".join(f"{33 * (i % 4)},{'uv'[i % 2]}\n" for i in range(30)), ["26 rows are"]),
    ],
)
def test_what_may_not_be_meant_is_said(root, text, warnings):
    write(root, text)
    found = data_warnings("mine", table="mine.csv")
    assert len(found) == len(warnings), found
    assert all(words in line for words, line in zip(warnings, found)), found


def test_what_was_made_of_a_table_is_said(root, tmp_path):
    frame = pd.DataFrame(
        {
            "size": [3, 1] * 10,
            "unit": "cm",
            "colour": ["red", "Red", "blue", "?"] * 5,
            "day": [f"2024-01-{1 + i % 28:02d}" for i in range(20)],
            "kind": ["u", "u", "u", "v"] * 5,
        }
    ).assign(weight=np.arange(20) / 8)
    frame = pd.concat([frame, frame.tail(1), frame.tail(1).assign(kind="u")])
    frame["remark"] = [f"note {i}" for i in range(20)] + ["note 19"] * 2
    file = tmp_path / "mine.csv"
    frame[["size", "weight", "unit", "colour", "day", "remark", "kind"]].to_csv(file, index=False)
    prepare_table("mine", file)
    notes = ["1 row is a copy of an earlier row; copies may be in training and test"]
    assert describe("mine").splitlines() == [
        "22 rows, 31 inputs, 2 classes",
        "classes, column kind: u (16), v (6)",
        "dates: day",
        "missing values: colour (7)",
        "numbers: size, weight",
        "words: unit (1), colour (3), remark (20)",
        *(f"note: {note}" for note in notes),
    ]
    assert data_warnings("mine") == data_warnings("other", table=str(file)) == notes
    assert data_warnings("letter") == data_warnings("digits") == [], "built-in sets are as they are"


def test_a_table_is_read_once_and_numbers_are_not_made_text(root, tmp_path, monkeypatch):
    """A million rows took 100 seconds, of which the text of numbers was nearly all."""
    file = tmp_path / "mine.csv"
    pd.DataFrame({"a": range(20), "b": np.arange(20) / 8, "kind": ["u", "v"] * 10}).to_csv(
        file, index=False
    )
    seen = []

    def read_frame(path):
        seen.append(path.name)
        return original(path)

    def text_of(column):
        seen.append(column.name)
        return of_text(column)

    original, of_text = tables.read_frame, columns.text_of
    monkeypatch.setattr(tables, "read_frame", read_frame)
    monkeypatch.setattr(columns, "text_of", text_of)
    prepare_table("mine", file)
    describe("mine")
    assert seen == ["mine.csv", "kind", "mine.parquet", "kind"]


# Names


def test_a_prepared_table_is_read_by_its_name(root, tmp_path):
    file = write(tmp_path, SMALL)
    assert prepare_table("mine", file, "sick") == root / "mine.parquet"
    digests = {
        table_digest(file),
        data_of("mine").digest(),
        data_of("a", table=str(file), target="sick").digest(),
    }
    assert digests == {read_table("mine").digest}
    assert ("mine", "prepared", "12 rows, 4 inputs, 2 classes") in listing()
    kinds = pd.DataFrame(
        {
            "code": ["007", "12", None] * 20,
            "money": ["$1,000", None, "$2.50"] * 20,
            "day": [None, *DATES["European"][1:]],
            "id": [None, *(f"customer {i}" for i in range(59))],
            "y": ["01", "02"] * 30,
        }
    )
    kinds.to_csv(tmp_path / "kinds.csv", index=False)
    prepare_table("kinds", tmp_path / "kinds.csv")
    assert read_table("kinds").digest == table_digest(tmp_path / "kinds.csv")
    assert read_table("kinds").classes == ("01", "02")
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


def test_missing_numbers_become_the_mean_of_the_training_rows():
    data = table()
    x = data.x.copy()
    x[np.random.default_rng(1).random(200) < 0.3, 1] = np.nan
    splits = table_splits(dataclasses.replace(data, x=x), SEEDS, (0, 0, 0))
    for trial in range(3):
        pipeline = make_pipeline(SimpleImputer(), StandardScaler())
        pipeline.fit(x[rows_of(splits, "train", trial), :2])
        for part in PARTS:
            expected = pipeline.transform(x[rows_of(splits, part, trial), :2])
            np.testing.assert_allclose(splits.part(part, trial)[0][:, :2], expected, atol=1e-6)
    nothing = dataclasses.replace(data, x=np.where(np.arange(5) == 1, np.nan, data.x))
    assert (table_splits(nothing, SEEDS, (0, 0, 0)).x[:, 1] == 0).all()


def test_texts_are_encoded_by_their_letters():
    """Alike texts are near, the same ones equal; 21 texts of one letter take fewer than 30 inputs."""
    towns = [f"{town} {i % 23}" for i, town in enumerate(["Oslo", "Bergen"] * 100)]
    data = dataclasses.replace(table(), texts={"town": np.array(towns, object)})
    splits = table_splits(data, SEEDS[:1], (0, 0, 0))
    assert splits.shape == (data.width,) == (35,)
    order = np.concatenate([rows_of(splits, part, 0) for part in PARTS])
    x = dict(zip(order.tolist(), splits.x[:, 5:]))
    assert torch.equal(x[0], x[46])
    assert torch.dist(x[0], x[4]) < torch.dist(x[0], x[1])
    letters = np.array([chr(ord("a") + i % 25) for i in range(200)], object)
    short = table_splits(dataclasses.replace(data, texts={"a": letters}), SEEDS[:1], (0, 0, 0))
    assert short.shape == (35,)
    assert short.x.isfinite().all()


@pytest.mark.parametrize("part", ["val", "test"])
def test_no_other_row_reaches_the_training_inputs(part):
    data = table()
    x = data.x.copy()
    x[::7, 1] = np.nan
    texts = np.array([f"text {i} of many" for i in range(200)], object)
    data = dataclasses.replace(data, x=x, texts={"t": texts})
    before = table_splits(data, SEEDS, (0, 0, 0))
    for trial in range(3):
        outside = rows_of(table_splits(table(), SEEDS, (0, 0, 0)), part, trial)
        changed = dataclasses.replace(data, x=x.copy(), texts={"t": texts.copy()})
        changed.x[outside, 1] = 1e6
        changed.texts["t"][outside] = "another"
        after = table_splits(changed, SEEDS, (0, 0, 0))
        assert torch.equal(after.part("train", trial)[0], before.part("train", trial)[0])
        assert not torch.equal(after.part(part, trial)[0], before.part(part, trial)[0])


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
    with pytest.raises(UserError, match=r"n_test is 150 \+ 40 \+ 40, but there are 200 rows"):
        table_splits(table(), SEEDS, (150, 40, 40))
    with pytest.raises(UserError, match="n_train is 2, but there are 3 classes"):
        table_splits(table(), SEEDS, (2, 0, 0))


def test_a_protocol_draws_its_table(root):
    write(root, "a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    sizes = {"n_train": 0, "n_val": 0, "n_test": 0, "batch_size": 4, "trials": 3}
    made = Protocol(profile="tiny", dataset="own", table="mine.csv", target="y", **sizes)
    splits = load_splits(made, 0.2, trials=2)
    assert [tuple(getattr(splits, part).shape) for part in PARTS] == [(2, 12), (2, 4), (2, 4)]
    prepare_table("mine", root / "mine.csv")
    by_name = made.replace(dataset="mine", table="", target="")
    assert torch.equal(load_splits(by_name, 0.2, trials=2).x, splits.x)
    with pytest.raises(UserError, match="own: batch_size 11 leaves a last batch of one of 12"):
        load_splits(made.replace(batch_size=11), 0.0)
    with pytest.raises(MissingData, match=r"own: table 'gone.csv' is no file under"):
        load_splits(made.replace(table="gone.csv"), 0.0)


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
