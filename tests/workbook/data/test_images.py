"""Image sets: torchvision's own file formats in small, arrays, folders, and what is refused."""

import contextlib
import dataclasses
import functools
import hashlib
import os
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import refusals
from PIL import Image
from sklearn.datasets import load_digits
from torchvision.datasets import ImageFolder

from softadlib import models
from softadlib._validation import MissingData, UserError
from softadlib.trainer import evaluation
from softadlib.trainer.splits import PARTS, Splits
from softadlib.workbook.data import images
from softadlib.workbook.data.data_warnings import data_warnings
from softadlib.workbook.data.datasets import data_of
from softadlib.workbook.data.make_splits import image_splits
from softadlib.workbook.data.prepare import listing, prepare
from softadlib.workbook.studies.load_splits import load_splits
from softadlib.workbook.studies.protocol import Protocol

RNG = np.random.default_rng(0)
WHOLE = {"profile": "t", "n_train": 0, "n_val": 0, "n_test": 0, "trials": 1}


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    images._load.cache_clear()
    return tmp_path / "data"


def pictures(n, *shape):
    x = RNG.integers(0, 256, (n, *shape), dtype=np.uint8)
    x.reshape(-1)[:2] = 0, 255
    return x


def refused(words, name, folder=""):
    """The one line that a set is refused with."""
    images._load.cache_clear()
    with pytest.raises(UserError, match=words) as caught:
        images.load_images(name, str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# The archives, written in small


def write_fashionmnist(root, patch=None):
    raw, data = root / "FashionMNIST" / "raw", {}
    raw.mkdir(parents=True)
    for part, stem, n in (("train", "train", 30), ("test", "t10k", 10)):
        x, y = pictures(n, 28, 28), np.arange(n, dtype=np.uint8) % 10
        head = struct.pack(">4i", 0x803, n, 28, 28), struct.pack(">2i", 0x801, n)
        (raw / f"{stem}-images-idx3-ubyte").write_bytes(head[0] + x.tobytes())
        (raw / f"{stem}-labels-idx1-ubyte").write_bytes(head[1] + y.tobytes())
        data[f"x_{part}"], data[f"y_{part}"] = x[:, None], y
    return data


def write_cifar10(root, patch):
    """The pickled batches of CIFAR: rows of 3072 bytes, red plane first."""
    folder, data = root / "cifar-10-batches-py", {}
    folder.mkdir()
    train = [f"data_batch_{i}" for i in range(1, 6)]
    for part, files in (("train", train), ("test", ["test_batch"])):
        x, y = pictures(6 * len(files), 3072), np.arange(6 * len(files)) % 10
        for i, file in enumerate(files):
            batch = {"data": x[6 * i : 6 * i + 6], "labels": y[6 * i : 6 * i + 6].tolist()}
            (folder / file).write_bytes(pickle.dumps(batch))
        data[f"x_{part}"], data[f"y_{part}"] = x.reshape(-1, 3, 32, 32), y
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    allow(patch, "cifar")
    return data


def write_svhn(root, patch):
    """The .mat files of SVHN: (32, 32, 3, n), the digit 0 labelled 10."""
    from scipy.io import savemat

    data = {}
    for part in ("train", "test"):
        x, y = pictures(12, 32, 32, 3), np.arange(12) % 10
        theirs = {"X": x.transpose(1, 2, 3, 0), "y": np.where(y == 0, 10, y)[:, None]}
        savemat(root / f"{part}_32x32.mat", theirs)
        data[f"x_{part}"], data[f"y_{part}"] = x.transpose(0, 3, 1, 2), y
    allow(patch, "svhn")
    allow(patch, "utils")
    return data


def allow(patch, module):
    """Let torchvision take files that are not the real ones."""
    if patch:
        name = f"torchvision.datasets.{module}.check_integrity"
        patch.setattr(name, lambda path, md5=None: os.path.exists(path))


WRITE = {"fashionmnist": write_fashionmnist, "svhn": write_svhn, "cifar10": write_cifar10}


@pytest.mark.parametrize("name", WRITE)
def test_the_archives_own_formats_are_read(name, root, monkeypatch):
    expected = WRITE[name](root, monkeypatch)
    found = images.load_images(name)
    for key, value in expected.items():
        np.testing.assert_array_equal(getattr(found, key), value)
    assert images.available(name) == "downloaded"
    assert np.shares_memory(found.pool, found.x_train), "a set costs its bytes once"


@pytest.mark.parametrize("name", images.downloaded_sets())
def test_a_set_that_is_not_there_is_missing(name, root):
    with pytest.raises(MissingData, match=f"{name} is not under .*softad data prepare {name}"):
        images.load_images(name)
    assert images.available(name) == "missing"
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("name", ["cifar10", "svhn"])
def test_files_that_are_not_the_real_ones_are_refused(name, root):
    WRITE[name](root, None)  # torchvision's checksums are in force
    refused(rf"{name} is broken .*delete .*softad data prepare {name}", name)


def test_a_truncated_fashionmnist_is_named(root):
    write_fashionmnist(root)
    os.truncate(root / "FashionMNIST/raw/train-images-idx3-ubyte", 500)
    refused(r"fashionmnist is broken .*delete .*FashionMNIST and run", "fashionmnist")


@pytest.mark.parametrize("name", images.downloaded_sets())
def test_a_download_that_fails_is_one_line_and_leaves_nothing(root, monkeypatch, name):
    def refuse(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    words = rf"{name} could not be downloaded.*check the network"
    with pytest.raises(UserError, match=words) as line:
        prepare(name)
    assert "\n" not in str(line.value)
    assert list(root.iterdir()) == []
    assert images.available(name) == "missing"


def test_an_empty_folder_is_no_data_set(root):
    """An interrupted download of an earlier version left one: a run leaves the set out."""
    (root / "FashionMNIST/raw").mkdir(parents=True)
    (root / "FashionMNIST/raw/train-images-idx3-ubyte.gz").write_bytes(b"half")
    with pytest.raises(MissingData, match="fashionmnist is not under"):
        images.load_images("fashionmnist")
    assert images.available("fashionmnist") == "missing"


def test_a_download_is_put_in_its_place(root, monkeypatch):
    """A stand-in for the network writes the archive's files where torchvision would unpack them."""
    made = images.IMAGES["fashionmnist"]

    def load(place, download):
        if download:
            write_fashionmnist(place)
        return made.load(place, False)

    monkeypatch.setitem(images.IMAGES, "fashionmnist", dataclasses.replace(made, load=load))
    prepare("fashionmnist")
    assert images.load_images("fashionmnist").x_train.shape == (30, 1, 28, 28)
    assert [path.name for path in root.iterdir()] == ["FashionMNIST"]
    before = (root / images.IMAGES["fashionmnist"].files[0]).stat()
    prepare("fashionmnist")
    assert (root / images.IMAGES["fashionmnist"].files[0]).stat() == before, "it was there"


@pytest.mark.parametrize(
    ("name", "words"),
    [("digits", "digits needs no preparation"), ("pets", "'pets' unknown; .* --from-csv")],
)
def test_what_cannot_be_downloaded_is_refused(name, words):
    with pytest.raises(UserError, match=words):
        prepare(name)


# A folder of your own


def write_folder(folder, colours=(3,)):
    data = {}
    for part, n in (("train", 4), ("test", 2)):
        x = pictures(2 * n, 6, 8, *colours)
        for i, pixels in enumerate(x):
            file = folder / part / ("cat", "dog")[i // n] / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(pixels)
            (picture if colours or i % 2 else picture.convert("P")).save(file)  # a grey palette
        data[f"x_{part}"], data[f"y_{part}"] = x, np.repeat([0, 1], n)
    return data


@pytest.mark.parametrize("colours", [(3,), ()], ids=["RGB", "grey"])
def test_a_folder_of_your_own(tmp_path, colours):
    expected = write_folder(tmp_path / "pets", colours)
    found = images.load_images("pets", str(tmp_path / "pets"))
    for part in ("train", "test"):
        x = getattr(found, f"x_{part}")
        shown = x.transpose(0, 2, 3, 1) if colours else x[:, 0]
        np.testing.assert_array_equal(shown, expected[f"x_{part}"])
        np.testing.assert_array_equal(getattr(found, f"y_{part}"), expected[f"y_{part}"])
    values = {**WHOLE, "dataset": "pets", "folder": str(tmp_path / "pets"), "batch_size": 2}
    assert load_splits(Protocol(**values), 0.0).train.shape == (1, 6)


def test_a_photo_is_turned_as_its_camera_says(tmp_path):
    """Orientation 6 says that the first row of pixels is the right side of the picture."""
    write_folder(tmp_path)
    wide = np.zeros((8, 6, 3), dtype=np.uint8)
    wide[0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(wide).save(tmp_path / "train/cat/0.png", exif=exif)
    shown = images.load_images("pets", str(tmp_path)).x_train[0, 0]
    expected = np.zeros((6, 8))
    expected[:, -1] = 255
    np.testing.assert_array_equal(shown, expected)


def test_a_folder_that_changes_is_read_again(tmp_path):
    write_folder(tmp_path, ())
    before = images.load_images("pets", str(tmp_path))
    assert images.load_images("pets", str(tmp_path)) is before
    shutil.copy(tmp_path / "train/cat/0.png", tmp_path / "train/cat/one_more.png")
    after = images.load_images("pets", str(tmp_path))
    assert len(after.x_train) == len(before.x_train) + 1
    assert after.digest != before.digest


def test_opaque_alpha_is_no_channel(tmp_path):
    write_folder(tmp_path, ())
    with Image.open(tmp_path / "train/cat/1.png") as grey:
        grey.convert("LA").save(tmp_path / "train/cat/1.png")
    assert images.load_images("pets", str(tmp_path)).x_train.shape == (8, 1, 6, 8)


def test_results_belong_to_the_images_and_not_to_their_place(root, tmp_path):
    def digest(folder):
        return data_of("pets", str(folder)).digest()

    made = write_folder(tmp_path / "pets")
    first = digest(tmp_path / "pets")
    content = b"((8, 3, 6, 8), (4, 3, 6, 8))"
    content += b"".join(made[x].transpose(0, 3, 1, 2).tobytes() for x in ("x_train", "x_test"))
    content += b"".join(made[y].tobytes() for y in ("y_train", "y_test"))
    assert first == hashlib.sha256(content).hexdigest(), "stored results are known by this"
    shutil.copytree(tmp_path / "pets", tmp_path / "moved")
    assert digest(tmp_path / "moved") == first
    shutil.copy(tmp_path / "moved/train/cat/0.png", tmp_path / "moved/train/cat/1.png")
    edited = digest(tmp_path / "moved")
    (tmp_path / "moved/test/dog/2.png").rename(tmp_path / "moved/test/cat/9.png")
    assert len({first, edited, digest(tmp_path / "moved")}) == 3, "the same images, other labels"
    assert data_of("gaussian").digest() == data_of("cifar10").digest() == ""


def test_a_plain_folder_of_classes_is_split_as_a_table_is(tmp_path):
    x = pictures(30, 6, 8)
    for i, pixels in enumerate(x):
        file = tmp_path / "pets" / ("cat", "dog", "cow")[i // 10] / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    found = images.load_images("pets", str(tmp_path / "pets"))
    assert found.classes == 3
    assert found.y_train.tolist() == [0] * 10 + [1] * 10 + [2] * 10, "cat, cow, dog"
    rows = [*range(10), *range(20, 30), *range(10, 20)]
    np.testing.assert_array_equal(found.x_train[:, 0], x[rows])
    splits = image_splits(found, (17716, 961412), (0, 0, 0))
    assert [getattr(splits, part).shape for part in PARTS] == [(2, 18), (2, 6), (2, 6)]
    for trial, seed in enumerate((17716, 961412)):
        drawn = torch.cat([getattr(splits, part)[trial] for part in PARTS])
        assert drawn.tolist() == np.random.default_rng(seed).permutation(30).tolist()
    cut = image_splits(found, (17716,), (10, 5, 0))
    assert [getattr(cut, part).shape for part in PARTS] == [(1, 10), (1, 5), (1, 6)]
    with pytest.raises(UserError, match=r"is 20 \+ 20 \+ 6, but there are 30 rows"):
        image_splits(found, (17716,), (20, 20, 0))
    assert data_warnings("pets", folder=str(tmp_path / "pets")) == []


def add_class(pets):
    (pets / "train/ant").mkdir()


def only_train(pets):
    shutil.rmtree(pets / "test")


def flat(pets):
    for i, file in enumerate(pets.rglob("*.png")):
        shutil.copy(file, pets / f"{i}.png")
    only_train(pets)
    shutil.rmtree(pets / "train")


def flat_parts(pets):
    for file in list(pets.rglob("*.png")):
        file.rename(file.parent.parent / file.name)
        with contextlib.suppress(OSError):
            file.parent.rmdir()


def capitals(pets):
    for name in ("train", "test"):
        (pets / name).rename(pets / name.capitalize())


def cow_in_test_alone(pets):
    shutil.copytree(pets / "test/cat", pets / "test/cow")


def one_class(pets):
    for split in ("train", "test"):
        shutil.rmtree(pets / split / "dog")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (shutil.rmtree, ["there is no such folder", "train/<class>/ and test/<class>/"]),
        (add_class, ["ant/ has no images", "ant is in one of train/ and test/ alone"]),
        (cow_in_test_alone, ["cow is in one of train/ and test/ alone"]),
        (one_class, ["it has the classes ['cat']; give two or more"]),
        (flat, ["it has the classes []; give two or more", "<class>/"]),
        (flat_parts, ["it has the classes []; give two or more"]),
        (capitals, ["Test/ is no class: give train/ and test/", "Train/ is no class"]),
        (only_train, ["train/ is no class: give train/ and test/, or folder: ", "pets/train"]),
    ],
)
def test_a_folder_of_another_layout_is_refused(tmp_path, change, words):
    pets = tmp_path / "pets"
    write_folder(pets)
    change(pets)
    call = functools.partial(images.load_images, "pets", str(pets))
    refusals.refused(call, str(pets), *words, kind=UserError)


def test_all_files_that_are_off_are_named_at_once(tmp_path):
    pets = tmp_path / "pets"
    write_folder(pets)
    (pets / "train/cat/bad.ppm").write_bytes(b"no image")
    (pets / "train/cat/short.ppm").write_bytes(b"P6 8 6 255\n" + bytes(9))
    (pets / "train/cat/z.png").symlink_to(tmp_path / "gone.png")
    Image.new("RGB", (9, 9)).save(pets / "train/dog/large.png")
    Image.fromarray(np.arange(48, dtype=np.uint16).reshape(6, 8)).save(pets / "test/dog/2.png")
    Image.new("RGBA", (8, 6), (0, 0, 0, 0)).save(pets / "test/dog/clear.png")
    Image.new("L", (8, 6)).save(pets / "test/dog/grey.png")
    with pytest.raises(UserError) as caught:
        images.load_images("pets", str(pets))
    said = str(caught.value)
    for words in (
        "bad.ppm is not a readable image",
        "short.ppm is not a readable image",
        "z.png is not a readable image",
        "large.png is (9, 9, 3), the images before it (6, 8, 3)",
        "2.png has pixels of more than 8 bits (mode I;16)",
        "clear.png has transparent pixels, which have no colour; give it a background",
        "; and 1 more",
    ):
        assert words in said
    assert "\n" not in said
    with pytest.raises(UserError, match="'pets' is no image set; name your images in the profile"):
        images.load_images("pets")


def test_hidden_files_and_folders_are_no_images_and_no_classes(tmp_path):
    pets = tmp_path / "pets"
    write_folder(pets)
    before = images.load_images("pets", str(pets))
    for hidden in (".ipynb_checkpoints", "__MACOSX"):
        shutil.copytree(pets / "train/dog", pets / "train" / hidden)
        shutil.copytree(pets / "train/dog", pets / "train/cat" / hidden)
    shutil.copy(pets / "train/cat/0.png", pets / "train/cat/._0.png")
    after = images.load_images("pets", str(pets))
    assert (after.classes, after.digest) == (2, before.digest)
    assert len(data_warnings("pets", folder=str(pets))) == 1, "classes with few images alone"


def test_files_are_read_in_the_order_of_torchvision(tmp_path):
    """Results belong to the order of the images, too."""
    for name in ("b/10.png", "b/9.JPG", "a/x/1.webp", "a/x-1/2.png", "a/z.png", "a/notes.txt"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.new("RGB", (4, 4))
        picture.save(file, "PNG") if file.suffix != ".txt" else file.write_text("")
    (tmp_path / "linked").mkdir()
    (tmp_path / "b/more").symlink_to(tmp_path / "a/x", target_is_directory=True)
    theirs = [Path(file) for file, _ in ImageFolder(tmp_path, allow_empty=True).samples]
    assert [file for files in images.classes_in(tmp_path).values() for file in files] == theirs


def test_what_a_folder_has_beside_its_images_is_said(tmp_path):
    pets = tmp_path / "pets"
    write_folder(pets)
    few = "classes with few images, of which a part of a trial may have none: cat (4), dog (4)"
    few = f"{pets}: {few}"
    assert data_warnings("pets", folder=str(pets)) == [few]
    for part in ("cat", "dog"):
        Image.fromarray(pictures(1, 6, 8, 3)[0]).save(pets / f"train/{part}/8.png")
    assert data_warnings("pets", folder=str(pets)) == []
    (pets / "train/list.txt").write_text("")
    shutil.copy(pets / "train/cat/0.png", pets / "train/dog/9.png")
    Image.new("RGB", (8, 6)).save(pets / "train/cat/moving.gif")
    (pets / "test/dog/notes.txt").write_text("")
    (pets / "test/dog/.DS_Store").write_text("")
    (pets / "val/cat").mkdir(parents=True)
    shutil.copy(pets / "train/cat/0.png", pets / "val/cat/0.png")
    shutil.copy(pets / "train/cat/0.png", pets / "test/dog/3.png")
    assert data_warnings("pets", folder=str(pets)) == [
        f"{pets}: val is not read; validation images are drawn from train",
        f"{pets}: files beside the images of the classes are left out: .gif (1), .txt (2)",
        f"{pets}: 1 training images are copies of another; images of other parts, drawn from them, may be "
        "training images, too",
        f"{pets}: 1 test images are training images, too",
    ]


@pytest.mark.parametrize("names", [("images", "masks"), ("Images", "labels")])
def test_images_and_their_masks_are_no_classes_without_a_word(tmp_path, names):
    pets = tmp_path / "pets"
    write_folder(pets)
    for split in ("train", "test"):
        for old, new in zip(("cat", "dog"), names):
            (pets / split / old).rename(pets / split / new)
    said = data_warnings("pets", folder=str(pets))
    assert f"{pets}: {names[0]}, {names[1]} are taken for classes" in said[0]


def test_folders_of_classes_below_others_are_said(tmp_path):
    for place in ("north/cat", "north/dog", "south/cat", "south/dog"):
        (tmp_path / "pets" / place).mkdir(parents=True)
        for i in range(3):
            picture = Image.fromarray(pictures(1, 6, 8)[0])
            picture.save(tmp_path / "pets" / place / f"{i}.png")
    words = "north, south are taken for classes; each holds the folders cat, dog"
    pets = tmp_path / "pets"
    assert data_warnings("pets", folder=str(pets)) == [f"{pets}: {words}"]


def test_folders_that_differ_in_capital_letters_are_said(tmp_path):
    for name in ("cat", "Cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i, pixels in enumerate(pictures(5, 6, 8)):
            Image.fromarray(pixels ^ ord(name[0])).save(tmp_path / "pets" / name / f"{i}.png")
    lines = data_warnings("pets", folder=str(tmp_path / "pets"))
    assert "the classes Cat, cat differ in spelling alone" in lines[0]


# Digits, parts and networks


def test_digits_need_no_file(root):
    digits, (x, y) = images.load_images("digits"), load_digits(return_X_y=True)
    counts = np.bincount(digits.y_test)
    assert counts.tolist() == (np.bincount(y) // 5).tolist(), "a fifth of every class is test"
    rows = {row.tobytes() for row in x.astype(np.uint8)}
    assert {row.tobytes() for row in digits.pool} == rows
    assert (len(digits.pool), digits.classes, images.available("digits")) == (1797, 10, "embedded")
    assert list(root.iterdir()) == []


def test_the_listing_says_what_is_there(root):
    (root / "torn.parquet").write_bytes(b"PAR1")
    found = {name: (state, size) for name, state, size in listing()}
    assert list(found)[:5] == list(images.IMAGES)
    assert found["digits"] == ("embedded", "1,797 of 8 × 8")
    assert found["cifar10"] == ("missing", "60,000 of 32 × 32 × 3")
    assert found["svhn"][0] == "missing"
    assert found["torn"][0] == "broken"


def test_trials_share_one_pool_and_split_as_the_authors_do():
    digits = images.load_images("digits")
    splits = image_splits(digits, (17716, 961412), (0, 0, 0))
    n = len(digits.y_train)
    assert splits.train.shape == (2, int(0.8 * n))
    assert splits.x.dtype == torch.uint8
    assert np.shares_memory(splits.x.numpy(), digits.pool)
    assert splits.to("cpu", torch.float64).x.data_ptr() == splits.x.data_ptr()
    for trial, seed in enumerate((17716, 961412)):
        order = np.arange(n)
        np.random.default_rng(seed).shuffle(order)
        both = torch.cat([splits.train[trial], splits.val[trial]])
        assert both.tolist() == order.tolist()
        assert splits.test[trial].tolist() == list(range(n, len(splits.x)))
    cut = image_splits(digits, (17716,), (100, 50, 60))
    assert cut.train[0].tolist() == splits.train[0, :100].tolist()
    with pytest.raises(UserError, match="n_val is 5000, but that part has"):
        image_splits(digits, (17716,), (0, 5000, 0))


def test_inputs_are_scaled_by_the_range_of_the_training_part():
    x = np.zeros((12, 1, 2, 2), dtype=np.uint8)
    x[:, 0, 0, 0] = np.arange(12) * 20  # 0, 20, ..., 220: parts differ in least and greatest value
    some = images.Images(x[:8], np.arange(8) % 2, x[8:], np.arange(4) % 2)
    splits = image_splits(some, (1, 2), (0, 0, 0)).to("cpu", torch.float64)
    for trial in (0, 1):
        train, _ = splits.part("train", trial)
        low, high = train.min().item(), train.max().item()
        for part in ("train", "val", "test"):
            raw, _ = splits.part(part, trial)
            shown = splits.inputs(raw, trial)
            torch.testing.assert_close(shown, (raw.double() - low) / (high - low))
    black = images.Images(x[:8] * 0, np.arange(8) % 2, x[8:], np.arange(4) % 2)
    raw, _ = image_splits(black, (1,), (0, 0, 0)).part("train")
    assert (image_splits(black, (1,), (0, 0, 0)).inputs(raw, 0) == 0).all()
    stacked = splits.inputs(splits.x[splits.train], torch.tensor([0, 1]))
    for trial in (0, 1):
        alone = splits.inputs(splits.part("train", trial)[0], trial)
        torch.testing.assert_close(stacked[trial], alone)


def test_the_range_is_that_of_every_training_image():
    x = torch.full((6000, 1, 1, 1), 100, dtype=torch.uint8)
    x[-1] = 200
    train = torch.arange(6000)[None]
    splits = Splits(x, torch.zeros(6000).long(), train, train[:, :2], train[:, :2], 2)
    assert [value.item() for value in splits.range] == [100, 100]


def test_resnets_are_torchvisions_with_the_papers_norms():
    for name, norm in (("resnet18", 111.8), ("resnet34", 153.7)):
        net = models.build(name, (3, 32, 32), 10, 17716)
        found = evaluation.model_norm(dict(net.named_parameters())).item()
        assert found == pytest.approx(norm, rel=2e-3)
    with pytest.raises(UserError, match="resnet18 takes images of 3 channels"):
        models.build("resnet18", (1, 8, 8), 10, 0)


def test_without_torchvision_one_line_and_no_harm_elsewhere(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchvision", None)  # its import fails
    with pytest.raises(UserError, match=r"torchvision cannot be used with torch .*matching pair"):
        models.build("resnet18", (3, 32, 32), 10, 0)
    assert images.load_images("digits").classes == 10
