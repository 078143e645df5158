"""Tables: what is read and refused, what each trial draws, and that nothing leaks into training."""

import dataclasses
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from softadlib._validation import MissingData, UserError
from softadlib.data.images import dataset_names, own_digest
from softadlib.data.sets import listing, prepare_table
from softadlib.data.splits import PARTS, table_splits
from softadlib.data.tables import TABLES, Table, read_table, table_digest, table_file
from softadlib.training.chunk import train_runs
from softadlib.training.inputs import load_splits
from softadlib.training.protocol import Protocol

SEEDS = (17716, 961412, 457707)


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def write(root, text, name="mine.csv"):
    (root / name).write_text(text)
    return root / name


SMALL = "age,colour,sick\n31,red,no\n42.5,blue,yes\n18,red,yes\n7,green,no\n"


# Reading


def test_numbers_words_and_classes(root):
    table = read_table(write(root, SMALL))
    assert table.inputs == ("age", "colour=blue", "colour=green", "colour=red")
    expected = [[31, 0, 0, 1], [42.5, 1, 0, 0], [18, 0, 0, 1], [7, 0, 1, 0]]
    np.testing.assert_array_equal(table.x, expected)
    assert table.is_word.tolist() == [False, True, True, True]
    assert (table.classes, table.y.tolist()) == (("no", "yes"), [0, 1, 1, 0])


def test_csv_parquet_and_npz_hold_the_same_numbers(root):
    x, y = np.random.default_rng(0).normal(size=(12, 3)), np.arange(12) % 3
    frame = pd.DataFrame(x, columns=["x0", "x1", "x2"]).assign(y=y)
    frame.to_csv(root / "a.csv", index=False)
    frame.to_parquet(root / "b.parquet")
    np.savez(root / "c.npz", x=x, y=y)
    tables = [read_table(name) for name in ("a.csv", "b.parquet", "c.npz")]
    for table in tables:
        np.testing.assert_array_equal(table.x, x)
        np.testing.assert_array_equal(table.y, y)
    assert len({table.digest for table in tables}) == 1


def test_categories_may_be_called_by_numbers(root):
    """A column that a parquet file declares categorical holds words, as in OpenML's car: 2, 3, 5more."""
    doors = pd.Categorical(["2", "3", "5more", "2"])
    pd.DataFrame({"doors": doors, "y": [0, 0, 1, 1]}).to_parquet(root / "car.parquet")
    assert read_table("car").inputs == ("doors=2", "doors=3", "doors=5more")


def test_the_digest_is_that_of_names_and_values(root):
    swapped = SMALL.replace("red,no", "red,yes").replace("blue,yes", "blue,no")
    pairs = (("42.5", "42"), ("age", "years"), ("green", "grey"))
    texts = [SMALL, SMALL + "8,red,no\n", swapped, *(SMALL.replace(*pair) for pair in pairs)]
    digests = [table_digest(write(root, text, f"{i}.csv")) for i, text in enumerate(texts)]
    assert len(set(digests)) == len(texts)
    (root / "elsewhere").mkdir()
    assert table_digest(write(root / "elsewhere", SMALL, "other.csv"), "sick") == digests[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a readable csv file .No columns"),
        ("\x00\x01binary", "holds 0 rows of 1 columns"),
        ("a;b;y\n1;2;3\n", "holds 1 rows of 1 columns; .* with commas between them"),
        ("a,b,y\n", "holds 0 rows of 3 columns"),
        (",y\n0,1\n1,2\n", "column 0, counted from 0, has no name"),
        ("Unnamed: ,y\n0,1\n1,2\n", "column , counted from 0, has no name"),
        ("y,a,y\n0,1,0\n1,2,1\n", "2 columns have the name 'y'; leave one"),
        ("a,y\n0,2,3\n1,5,6\n", "its rows have more values than its header has names"),
        ("a,y\n1,2\n1,2,3,4\n", "is not a readable csv file .*line 3"),
        ("a,y\n1,0\n,1\n2,0\n,1\n", "column 'a' has 2 missing values, first in row 2; fill them"),
        ("a,y\n1,0\n1,\n2,0\n3,1\n", "column 'y' has 1 missing values, first in row 2"),
        ("a,y\n1,0\n2,1\nx,0\n3,1\n", "column 'a' holds numbers and the text 'x' in row 3"),
        ("a,y\n1,0\ninf,1\n2,0\n3,1\n", "column 'a' is infinite in row 2"),
        ("a,y\n1,0\n2,0\n", "column 'y' holds one class, '0'; give two or more"),
        ("a,y\n1,0\n2,0\n3,1\n", "class '1' of column 'y' has a single row"),
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
    for name in ("mine.parquet", "mine2.npz"):
        with pytest.raises(UserError, match=rf"{name} is not a readable \w+ file"):
            read_table(write(root, SMALL, name))
    (root / "latin.csv").write_bytes("größe,y\n1,0\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"latin.csv is not a readable csv file .*utf-8"):
        read_table("latin.csv")
    rows = "".join(f"w{i},{i % 2}\n" for i in range(257))
    with pytest.raises(UserError, match=r"column 'id' holds 257 different words, more than 256"):
        read_table(write(root, f"id,y\n{rows}"))


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
    assert ("mine", "prepared", "4 rows, 4 inputs, 2 classes") in listing()
    prepare_table("first", write(tmp_path, "kind,a\nu,1\nv,2\nu,3\nv,4\n"), "kind")
    assert read_table("first").classes == ("u", "v"), "the class column is the last now"
    prepare_table("own", write(tmp_path, "self,a\nu,1\nv,2\nu,3\nv,4\n"), "self")
    assert read_table("own").classes == ("u", "v")


def test_headers_of_two_levels_are_names_of_both(root):
    frame = pd.DataFrame([[1, 0], [2, 1], [3, 0], [4, 1]])
    frame.columns = pd.MultiIndex.from_tuples([("size", "cm"), ("y", "")])
    frame.to_parquet(root / "levels.parquet")
    assert read_table("levels").inputs == ("('size', 'cm')",)


def test_a_table_that_is_refused_leaves_what_was_there(root, tmp_path):
    file = write(tmp_path, SMALL)
    before = prepare_table("mine", file).read_bytes()
    single = write(tmp_path, "a,y\n1,0\n2,0\n", "single.csv")
    for name, path, target, words in (
        ("spiral", file, "", "'spiral' is taken or no plain name"),
        ("digits", file, "", "'digits' is taken or no plain name"),
        ("../x", file, "", "'../x' is taken or no plain name"),
        ("mine", file, "nowhere", "class column .target. 'nowhere' unknown"),
        ("mine", single, "", "single.csv: column 'y' holds one class"),
        ("mine", tmp_path / "gone.csv", "", "gone.csv is no file"),
    ):
        with pytest.raises(UserError, match=words):
            prepare_table(name, path, target)
    assert [path.read_bytes() for path in root.iterdir()] == [before]


def test_built_in_names_are_found_or_said_to_be_missing(root, monkeypatch):
    assert len(TABLES) == 16
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
    with pytest.raises(UserError, match=r"^vowel could not be had from OpenML .*the network.*$"):
        prepare_table("vowel")
    with pytest.raises(UserError, match="table to download 'marketing' unknown"):
        prepare_table("marketing")


def test_openml_is_asked_by_its_own_name(root, monkeypatch):
    """A stand-in for the network answers as `fetch_openml` does: categories, the class anywhere."""

    def fetch(name, **options):
        assert name == "credit-g"
        columns = {"Class": pd.Categorical(list("abab")), "sex": pd.Categorical(list("mfmf"))}
        frame = pd.DataFrame({**columns, "f0": [1, 2, 3, 4]})
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
    drawn = []
    for trial in range(3):
        parts = [rows_of(splits, part, trial) for part in PARTS]
        assert [len(rows) for rows in parts] == [120, 40, 40]
        assert sorted(np.concatenate(parts).tolist()) == list(range(200))
        for part, rows in zip(PARTS, parts):
            x, y = splits.part(part, trial)
            assert y.tolist() == data.y[rows].tolist()
            np.testing.assert_array_equal(x[:, 2:], data.x[rows, 2:])
        drawn.append(tuple(parts[0]))
        order = np.random.default_rng(SEEDS[trial]).permutation(200)
        np.testing.assert_array_equal(np.concatenate(parts), order)
    assert len(set(drawn)) == 3
    alone = table_splits(data, SEEDS[1:2], (0, 0, 0))
    for part in PARTS:
        assert torch.equal(alone.part(part)[0], splits.part(part, 1)[0]), "of its seed alone"


def test_numbers_are_standardised_as_scikit_learn_does():
    data = table()
    splits = table_splits(data, SEEDS, (0, 0, 0))
    for trial in range(3):
        scaler = StandardScaler().fit(data.x[rows_of(splits, "train", trial), :2])
        for part in PARTS:
            expected = scaler.transform(data.x[rows_of(splits, part, trial), :2])
            np.testing.assert_allclose(splits.part(part, trial)[0][:, :2], expected, atol=1e-6)


def leaks(split, data):
    """Whether the training inputs move with the values of the rows outside of the training part."""
    before = split(data)
    outside = np.concatenate([rows_of(before, part, 0) for part in ("val", "test")])
    x = data.x.copy()
    x[outside, 1] += 1000
    after = split(dataclasses.replace(data, x=x))
    return not torch.equal(before.part("train")[0], after.part("train")[0])


def test_nothing_leaks_from_test_to_train():
    def planted(data):
        x = data.x.copy()
        x[:, :2] = StandardScaler().fit_transform(x[:, :2])  # by all rows, the leak
        as_it_is = dataclasses.replace(data, x=x, is_word=np.ones(5, bool))  # words are not scaled
        return table_splits(as_it_is, SEEDS, (0, 0, 0))

    assert leaks(planted, table())
    assert not leaks(lambda data: table_splits(data, SEEDS, (0, 0, 0)), table())


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


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize(("noise", "flips"), [(0.0, 0), (0.1, 12), (0.2, 24)])
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


@pytest.mark.parametrize("name", ["digits", "letter"])
def test_a_perceptron_is_at_least_as_accurate_as_scikit_learns(name, root, monkeypatch):
    """Two layers of 256, Adam with the same step and batch, the same rows, 30 epochs."""
    if name == "digits":
        file = root / "digits.csv"
        load_digits(as_frame=True).frame.to_csv(file, index=False)
    else:
        monkeypatch.undo()  # the data root of this machine
        try:
            file = table_file(name)
        except MissingData as error:
            pytest.skip(str(error))
    values = {"profile": "p", "dataset": "mine", "table": str(file), "model": "mlp2x256"}
    values |= {"epochs": 30, "trials": 2, "batch_size": 100, "device": "cpu"}
    protocol = Protocol(**values | dict.fromkeys(("n_train", "n_val", "n_test"), 0))
    ours, _ = train_runs(protocol, protocol.runs("erm"), {protocol.epochs})
    splits = load_splits(protocol, 0.0)
    for trial, accuracy in enumerate(ours["acc_test"]):
        train, test = splits.train[trial], splits.test[trial]
        network = MLPClassifier((256, 256), batch_size=100, max_iter=30, alpha=0, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # after 30 epochs it has not converged
            network.fit(splits.x[train], splits.y[train])
        assert accuracy >= network.score(splits.x[test], splits.y[test])
