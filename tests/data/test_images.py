"""Image sets: torchvision's own file formats in small, prepared files, folders, and what is refused."""

import gzip
import hashlib
import multiprocessing
import os
import pickle
import shutil
import struct

import numpy as np
import pytest
import torch
from helpers.workspace import make_home, tree
from sklearn.datasets import load_digits

from softadlib import _workspace, models
from softadlib._validation import UserError
from softadlib.data import image_folder, images
from softadlib.data.prepared import read_prepared
from softadlib.data.splits import image_splits
from softadlib.results import reader
from softadlib.training import evaluation
from softadlib.training.executors import shards
from softadlib.training.inputs import load_splits
from softadlib.training.protocol import Protocol
from softadlib.training.study_plan import Study
from softadlib.workbook import cli

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    make_home(tmp_path / "home")
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SOFTAD_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    images._read.cache_clear()
    return tmp_path / "data"


def pictures(n, *shape):
    x = RNG.integers(0, 256, (n, *shape), dtype=np.uint8)
    if n:
        x.reshape(-1)[:2] = 0, 255
    return x


def write_fashionmnist(root):
    raw, data = root / "FashionMNIST" / "raw", {}
    raw.mkdir(parents=True)
    for part, stem, n in (("train", "train", 30), ("test", "t10k", 10)):
        x, y = pictures(n, 28, 28), np.arange(n, dtype=np.uint8) % 10
        (raw / f"{stem}-images-idx3-ubyte").write_bytes(
            struct.pack(">4i", 0x803, n, 28, 28) + x.tobytes()
        )
        (raw / f"{stem}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, n) + y.tobytes())
        data[f"x_{part}"], data[f"y_{part}"] = x[:, None], y
    return data


def write_cifar(root, name, patch):
    """The pickled batches of CIFAR: rows of 3072 bytes, red plane first."""
    folder = root / {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[name]
    folder.mkdir(parents=True)
    label = {"cifar10": b"labels", "cifar100": b"fine_labels"}[name].decode()
    train = [f"data_batch_{i}" for i in range(1, 6)] if name == "cifar10" else ["train"]
    data = {"train": [], "test": []}
    for part, files in (
        ("train", train),
        ("test", ["test_batch" if name == "cifar10" else "test"]),
    ):
        for file in files:
            x, y = pictures(6, 3072), [i % 10 for i in range(6)]
            (folder / file).write_bytes(pickle.dumps({"data": x, label: y}))
            data[part].append((x.reshape(-1, 3, 32, 32), y))
    meta = {"cifar10": ("batches.meta", "label_names"), "cifar100": ("meta", "fine_label_names")}[
        name
    ]
    (folder / meta[0]).write_bytes(pickle.dumps({meta[1]: [str(i) for i in range(10)]}))
    if patch is not None:  # torchvision would refuse files that are not the real ones
        patch.setattr(
            "torchvision.datasets.cifar.check_integrity",
            lambda path, md5=None: os.path.exists(path),
        )
    return {
        f"{k}_{part}": np.concatenate([b[i] for b in data[part]])
        for part in data
        for i, k in enumerate("xy")
    }


def write_svhn(root, patch):
    """The .mat files of SVHN: (32, 32, 3, n), the digit 0 labelled 10."""
    from scipy.io import savemat

    data = {}
    for part in ("train", "test"):
        x, y = pictures(12, 32, 32, 3), np.arange(12) % 10
        savemat(
            root / f"{part}_32x32.mat",
            {"X": x.transpose(1, 2, 3, 0), "y": np.where(y == 0, 10, y)[:, None]},
        )
        data[f"x_{part}"], data[f"y_{part}"] = x.transpose(0, 3, 1, 2), y
    if patch is not None:
        for module in ("svhn", "utils"):
            patch.setattr(
                f"torchvision.datasets.{module}.check_integrity",
                lambda path, md5=None: os.path.exists(path),
            )
    return data


def write(name, root, patch):
    if name == "fashionmnist":
        return write_fashionmnist(root)
    return write_svhn(root, patch) if name == "svhn" else write_cifar(root, name, patch)


@pytest.mark.parametrize("name", images.downloaded_sets())
def test_the_archives_own_formats_are_read(name, root, monkeypatch):
    expected = write(name, root, monkeypatch)
    found = images.load_images(name)
    for key, value in expected.items():
        np.testing.assert_array_equal(getattr(found, key), value)
    assert images.available(name) == "downloaded"
    assert found.pool.dtype == np.uint8
    assert len(found.pool) == len(expected["y_train"]) + len(expected["y_test"])
    assert np.shares_memory(found.pool, found.x_train), "a set costs its bytes once"


@pytest.mark.parametrize("name", images.downloaded_sets())
def test_preparing_changes_no_pixel(name, root, monkeypatch, capsys):
    expected = write(name, root, monkeypatch)
    assert cli.main(["data", "prepare", name]) == 0
    out = capsys.readouterr().out
    path = root / f"{name}.npz"
    assert str(path) in out
    assert hashlib.sha256(path.read_bytes()).hexdigest() in out
    for other in root.iterdir():
        if other != path:
            other.rename(root.parent / other.name)
    assert images.available(name) == "prepared"
    found = images.load_images(name)
    for key, value in expected.items():
        np.testing.assert_array_equal(getattr(found, key), value)


@pytest.mark.parametrize("name", images.downloaded_sets())
def test_what_is_not_there_is_said_and_never_replaced(name, root):
    assert images.available(name) == "missing"
    with pytest.raises(
        UserError, match=f"{name} is not under .*get it: softad data prepare {name}"
    ):
        images.load_images(name)
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn"])
def test_files_that_are_not_the_real_ones_are_refused(name, root):
    write(name, root, None)  # torchvision's checksums are in force
    with pytest.raises(
        UserError, match=rf"{name} is broken .*delete .*softad data prepare {name}"
    ) as caught:
        images.load_images(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 10, 500])
def test_a_truncated_fashionmnist_is_named(root, keep):
    write_fashionmnist(root)
    file = root / "FashionMNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"fashionmnist is broken .*FashionMNIST.raw") as caught:
        images.load_images("fashionmnist")
    assert "\n" not in str(caught.value)


def test_a_refused_download_is_one_line_and_leaves_no_cache(root, monkeypatch, capsys):
    def refuse(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    assert cli.main(["data", "prepare", "fashionmnist"]) == 2
    line = capsys.readouterr().err.strip()
    assert "fashionmnist could not be had" in line
    assert "check the network" in line
    assert "\n" not in line
    assert not list(root.rglob("*.npz"))


def save_prepared(root, name="mine", **changes):
    arrays = {"x_train": pictures(20, 8, 8), "y_train": np.arange(20) % 2, "x_test": pictures(10, 8, 8),
              "y_test": np.arange(10) % 2} | changes  # fmt: skip
    np.savez(root / f"{name}.npz", **{k: v for k, v in arrays.items() if v is not None})
    return arrays


def test_the_prepared_file_is_read_first(root, monkeypatch):
    write_fashionmnist(root)
    mine = save_prepared(root, "fashionmnist")
    np.testing.assert_array_equal(images.load_images("fashionmnist").x_train[:, 0], mine["x_train"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_test": None}, "lacks y_test"),
        ({"x_train": np.zeros((20, 8, 8))}, "x_train must be uint8"),
        ({"x_train": pictures(19, 8, 8)}, r"got uint8 \(19, 8, 8\) and int64 \(20,\)"),
        ({"x_test": pictures(0, 8, 8), "y_test": np.arange(0)}, "not empty"),
        ({"x_train": np.zeros((20, 0, 8), np.uint8)}, "not empty"),
        ({"y_train": np.arange(20) * 1j}, r"and complex128 \(20,\)"),
        ({"y_train": np.arange(20).astype("M8[s]")}, r"and datetime64\[s\] \(20,\)"),
        ({"x_train": pictures(20, 3, 8, 8)}, "has its channels first; give"),
        ({"x_train": np.array([{}], dtype=object)}, "broken"),
        ({"x_test": pictures(20, 9, 9), "y_test": np.zeros(20, int)}, "give all one size"),
    ],
)
def test_a_prepared_file_that_is_off_is_named(root, changes, words):
    save_prepared(root, **changes)
    with pytest.raises(UserError, match=words) as caught:
        images.load_images("mine")
    assert "mine.npz" in str(caught.value)
    assert str(caught.value).count("softad data prepare mine --from-folder DIR") == 1


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (np.array(["cat", "dog"] * 10), r"\['cat', 'dog'\]"),
        (np.arange(20) % 2 + 0.5, r"\[0.0, 0.5, 1.0, 1.5\]"),
        (np.arange(20) % 2 * 10**6, r"\[0, 1, 1000000\]"),
        (np.arange(20) % 2 - 1, r"\[-1, 0, 1\]"),
    ],
)
def test_labels_of_a_prepared_file_count_from_zero(root, labels, found):
    parts = {"y_test": labels[:10]} if labels.dtype.kind == "U" else {}
    save_prepared(root, y_train=labels, **parts)
    with pytest.raises(UserError, match=rf"mine\.npz: labels must be 0, 1, … .*got {found}"):
        images.load_images("mine")


def test_a_prepared_file_of_one_class_or_of_another_format_is_named(root):
    save_prepared(root, y_train=np.zeros(20, int), y_test=np.zeros(10, int))
    with pytest.raises(UserError, match=r"mine\.npz: labels .* two classes or more, got \[0\]"):
        images.load_images("mine")
    with open(root / "array.npz", "wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(UserError, match=r"array\.npz is broken"):
        images.load_images("array")


@pytest.mark.parametrize("keep", [0, 40, 0.5])
def test_a_prepared_file_cut_short_is_named(root, keep):
    save_prepared(root)
    data = (root / "mine.npz").read_bytes()
    (root / "mine.npz").write_bytes(
        data[: int(len(data) * keep) if isinstance(keep, float) else keep]
    )
    with pytest.raises(UserError, match=r"mine\.npz is broken"):
        images.load_images("mine")


def test_a_prepared_file_with_one_damaged_byte_is_named_or_read(root):
    """zlib, zipfile and numpy each raise errors of their own."""
    arrays = {"x_train": pictures(8, 4, 4), "y_train": np.arange(8) % 2, "x_test": pictures(4, 4, 4),
              "y_test": np.arange(4) % 2}  # fmt: skip
    path = root / "mine.npz"
    np.savez_compressed(path, **arrays)
    content, refusals = path.read_bytes(), []
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            parts = read_prepared(path, "make it anew")
        except UserError as error:
            refusals.append(str(error))
        else:
            assert [part.shape for part in parts] == [array.shape for array in arrays.values()]
    assert len(refusals) > len(content) / 2
    assert all("mine.npz" in line and "\n" not in line for line in refusals)


def write_folder(folder, mode="RGB", size=(8, 6)):
    from PIL import Image

    expected = {}
    for part, n in (("train", 4), ("test", 2)):
        x, y = [], []
        for label, name in enumerate(("cat", "dog")):
            (folder / part / name).mkdir(parents=True)
            for i in range(n):
                pixels = pictures(1, size[1], size[0], *((3,) if mode == "RGB" else ()))[0]
                Image.fromarray(pixels, mode=mode).save(folder / part / name / f"{i}.png")
                x.append(pixels)
                y.append(label)
        expected[f"x_{part}"], expected[f"y_{part}"] = np.stack(x), np.array(y)
    return expected


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated:DeprecationWarning")
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_folder_of_ones_own(root, tmp_path, mode):
    expected = write_folder(tmp_path / "pets", mode)
    assert cli.main(["data", "prepare", "pets", "--from-folder", str(tmp_path / "pets")]) == 0
    prepared, direct = (
        images.load_images("pets"),
        images.load_images("pets2", str(tmp_path / "pets")),
    )
    for found in (prepared, direct):
        shown = found.x_train.transpose(0, 2, 3, 1) if mode == "RGB" else found.x_train[:, 0]
        np.testing.assert_array_equal(shown, expected["x_train"])
        np.testing.assert_array_equal(found.y_test, expected["y_test"])
        assert found.classes == 2
    protocol = Protocol.from_dict({"profile": "t", "dataset": "pets", "n_train": 0, "n_val": 0, "n_test": 0,
                                   "batch_size": 2, "trials": 1})  # fmt: skip
    assert load_splits(protocol, 0.0).train.shape == (1, 6)


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated:DeprecationWarning")
def test_results_belong_to_the_images_and_not_to_their_place(root, tmp_path):
    def of(folder):
        images._read.cache_clear()  # another process reads the files again
        values = {"profile": "t", "dataset": "pets", "folder": str(folder)}
        return Protocol.from_dict(values).fingerprint("softad")

    write_folder(tmp_path / "pets")
    first = of(tmp_path / "pets")
    shutil.copytree(tmp_path / "pets", tmp_path / "moved")
    assert of(tmp_path / "moved") == first
    shutil.copy(tmp_path / "moved/train/cat/0.png", tmp_path / "moved/train/cat/1.png")
    edited = of(tmp_path / "moved")
    assert edited != first
    (tmp_path / "moved/test/dog/0.png").rename(tmp_path / "moved/test/cat/9.png")
    assert of(tmp_path / "moved") not in (first, edited), "the same images with other labels"
    assert cli.main(["data", "prepare", "pets", "--from-folder", str(tmp_path / "pets")]) == 0
    assert of(tmp_path / "moved") == first, "the prepared file is what is read"


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated:DeprecationWarning")
def test_tasks_find_a_relative_folder_from_another_current_folder(root, tmp_path, monkeypatch):
    write_folder(_workspace.home() / "pets")
    sizes = {"n_train": 0, "n_val": 0, "n_test": 0, "batch_size": 2}
    made = Protocol.from_dict({"profile": "t", "dataset": "pets", "folder": "pets", **sizes})
    task = Study(made, "erm").worker_protocol
    expected = load_splits(made, 0.0)
    images._read.cache_clear()
    monkeypatch.setenv("SOFTAD_HOME", str(make_home(tmp_path / "elsewhere")))
    assert torch.equal(load_splits(task, 0.0).x, expected.x)
    with pytest.raises(UserError, match="folder '~nobody-here/pets': no such user"):
        images.own_folder("~nobody-here/pets")


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated:DeprecationWarning")
def test_edited_images_are_trained_anew_and_the_others_kept(root, tmp_path, capsys):
    write_folder(tmp_path / "pets")
    profile = tmp_path / "home/params/mine"
    profile.mkdir()
    (profile / "pets.yaml").write_text(
        f"folder: {tmp_path / 'pets'}\nn_train: 0\nn_val: 0\nn_test: 0\nbatch_size: 2\n"
        "trials: 1\nepochs: 1\nmodel: linear\noptimizer: sgd\n"
    )
    assert cli.main(["train", "mine", "-j", "1"]) == 0
    first = reader.read("mine")
    file = tmp_path / "pets/train/dog/0.png"
    kept = file.read_bytes()
    shutil.copy(tmp_path / "pets/train/cat/0.png", file)
    images._read.cache_clear()
    capsys.readouterr()
    assert cli.main(["train", "mine", "-j", "1"]) == 0
    assert "or of other images, are stored of pets × erm" in capsys.readouterr().err
    assert not reader.read("mine").equals(first)
    file.write_bytes(kept)
    images._read.cache_clear()
    assert cli.main(["train", "mine", "-j", "1"]) == 0
    assert "they are taken back" in capsys.readouterr().err
    assert reader.read("mine").equals(first)
    assert cli.main(["data", "prepare", "pets", "--from-folder", str(tmp_path / "pets")]) == 0
    capsys.readouterr()
    assert cli.main(["show", "mine"]) == 0
    shown = capsys.readouterr()
    assert "everything is trained" in shown.out
    assert "images are read from" in shown.err


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated:DeprecationWarning")
def test_the_cost_of_ones_own_images_is_that_of_their_number_and_size(root, tmp_path):
    """Eight training images of 6 × 8 × 3 and four test images, two classes: 6 to train on, 1 to validate on."""
    write_folder(tmp_path / "pets")
    values = {"profile": "t", "dataset": "pets", "folder": str(tmp_path / "pets"), "n_train": 0, "n_val": 0,
              "n_test": 0, "batch_size": 2, "trials": 1, "epochs": 5, "model": "linear"}  # fmt: skip
    protocol = Protocol.from_dict(values)
    own = images.own_image_set("pets", protocol.folder)
    forward = 2 * (6 * 8 * 3) * 2
    samples = 3 * 6 * 5 + (6 + 1 + 4)
    assert shards.run_cost(protocol, "erm", False, own) == forward * samples
    assert shards.run_cost(protocol, "erm", False) > 10_000 * forward * samples, "as CIFAR-10"
    assert images.own_image_set("gaussian") is images.own_image_set("cifar10") is None


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated:DeprecationWarning")
def test_folders_that_are_off_are_refused(root, tmp_path, capsys):
    def refused(folder, name="pets"):
        before = tree(root)
        assert cli.main(["data", "prepare", name, "--from-folder", str(folder)]) == 2
        assert tree(root) == before
        return capsys.readouterr().err.strip()

    assert "must hold train/<class>/ and test/<class>/" in refused(tmp_path / "nowhere")
    write_folder(tmp_path / "pets")
    assert "'cifar10' is taken" in refused(tmp_path / "pets", "cifar10")
    assert "no plain name" in refused(tmp_path / "pets", "../x")
    (tmp_path / "pets" / "train" / "cat" / "bad.png").write_bytes(b"no image")
    assert "bad.png is not a readable image" in refused(tmp_path / "pets")
    (tmp_path / "pets" / "train" / "cat" / "bad.png").unlink()
    (tmp_path / "pets" / "train" / "cat" / "bad.ppm").write_bytes(b"P6 8 6 255\n" + bytes(9))
    assert "bad.ppm is not a readable image" in refused(tmp_path / "pets")
    (tmp_path / "pets" / "train" / "cat" / "bad.ppm").unlink()
    for part in ("train", "test"):
        (tmp_path / "pets" / part / "ant").mkdir()
    assert "train/ant has no images" in refused(tmp_path / "pets")
    for part in ("train", "test"):
        (tmp_path / "pets" / part / "ant").rename(tmp_path / "pets" / part / ".ipynb_checkpoints")
    assert "train/.ipynb_checkpoints is hidden; delete it" in refused(tmp_path / "pets")
    for part in ("train", "test"):
        (tmp_path / "pets" / part / ".ipynb_checkpoints").rmdir()
    (tmp_path / "pets" / "test" / "cow").mkdir()
    assert "train has ['cat', 'dog'], test has ['cat', 'cow', 'dog']" in refused(tmp_path / "pets")
    for folder in ("train/dog", "test/dog", "test/cow"):
        shutil.rmtree(tmp_path / "pets" / folder)
    assert "of several classes; train has ['cat'], test has ['cat']" in refused(tmp_path / "pets")


def test_palettes_keep_their_colours_and_deep_pixels_are_refused(tmp_path):
    from PIL import Image

    colours = np.zeros((8, 8, 3), np.uint8)
    colours[:4, :, 0], colours[4:, :, 1] = 255, 130
    grey = pictures(1, 8, 8)[0] // 2  # 128 levels fit in a palette
    file = str(tmp_path / "image.png")
    for pixels in (colours, grey):
        picture = Image.fromarray(pixels).convert("P", palette=Image.Palette.ADAPTIVE)
        picture.save(file)
        with Image.open(file) as stored:
            assert stored.mode == "P"
        np.testing.assert_array_equal(image_folder.read_pixels(file), pixels)
    Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000).save(file)
    with pytest.raises(UserError, match=r"image.png has pixels of more than 8 bits \(mode I;16\)"):
        image_folder.read_pixels(file)


def _prepare(name):
    images.prepare(name)


def test_two_processes_preparing_one_set_do_no_harm(root):
    expected = write_fashionmnist(root)
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_prepare, args=("fashionmnist",)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [p.exitcode for p in both] == [0, 0]
    assert [p.name for p in root.iterdir() if p.suffix == ".npz" or p.name.startswith(".")] == [
        "fashionmnist.npz"
    ]
    np.testing.assert_array_equal(images.load_images("fashionmnist").x_test, expected["x_test"])


def test_digits_are_scikit_learns_with_and_without_its_file(monkeypatch):
    expected = np.column_stack(load_digits(return_X_y=True))
    assert np.array_equal(images._digits_table(), expected)
    monkeypatch.setattr(images.importlib.util, "find_spec", lambda name: None)
    assert np.array_equal(images._digits_table(), expected)


def test_digits_need_no_file():
    digits = images.load_images("digits")
    assert (len(digits.y_train) + len(digits.y_test), digits.classes) == (1797, 10)
    shares = np.bincount(digits.y_test) / (np.bincount(digits.y_train) + np.bincount(digits.y_test))
    assert (abs(shares - 0.2) < 0.01).all(), "a fifth of every class is test"


def test_data_list_names_every_set(capsys):
    assert cli.main(["data", "list"]) == 0
    out = capsys.readouterr().out
    for name in images.IMAGES:
        assert name in out
    assert "embedded" in out
    assert "missing" in out


def test_trials_share_one_pool_and_split_as_the_authors_do():
    digits = images.load_images("digits")
    splits = image_splits(digits, (17716, 961412), (0, 0, 0))
    n = len(digits.y_train)
    assert splits.train.shape == (2, int(0.8 * n))
    assert splits.val.shape == (2, n - int(0.8 * n))
    assert len(splits.x) == n + len(digits.y_test)
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


def test_inputs_are_scaled_part_by_part():
    x = np.zeros((12, 1, 2, 2), dtype=np.uint8)
    x[:, 0, 0, 0] = np.arange(12) * 20  # 0, 20, ..., 220: parts differ in least and greatest value
    some = images.Images(x[:8], np.arange(8) % 2, x[8:], np.arange(4) % 2)
    splits = image_splits(some, (1, 2), (0, 0, 0)).to("cpu", torch.float64)
    for trial in (0, 1):
        for part in ("train", "val", "test"):
            raw, _ = splits.part(part, trial)
            low, high = raw.min().item(), raw.max().item()
            shown = splits.inputs(raw, part, trial)
            assert shown.dtype == torch.float64
            torch.testing.assert_close(shown, (raw.double() - low) / (high - low))
    stacked = splits.inputs(splits.x[splits.train], "train", torch.tensor([0, 1]))
    for trial in (0, 1):
        torch.testing.assert_close(
            stacked[trial], splits.inputs(splits.part("train", trial)[0], "train", trial)
        )


def test_resnets_are_torchvisions_with_the_papers_norms():
    for name, norm in (("resnet18", 111.8), ("resnet34", 153.7)):
        net = models.build(name, (3, 32, 32), 10, 17716)
        found = evaluation.model_norm(dict(net.named_parameters())).item()
        assert found == pytest.approx(norm, rel=2e-3)
    with pytest.raises(UserError, match="resnet18 takes images of 3 channels"):
        models.build("resnet18", (1, 8, 8), 10, 0)


def test_without_torchvision_one_line_and_no_harm_elsewhere(monkeypatch):
    import builtins

    real = builtins.__import__

    def broken(name, *args, **kwargs):
        if name.startswith("torchvision"):
            raise RuntimeError("operator torchvision::nms does not exist")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(
        UserError, match=r"torchvision cannot be used with torch .*matching pair"
    ) as caught:
        models.build("resnet18", (3, 32, 32), 10, 0)
    assert "\n" not in str(caught.value)
    assert images.load_images("digits").classes == 10


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataset": "nowhere"}, "dataset 'nowhere' unknown; choose from gaussian"),
        ({"dataset": "digits", "folder": "/x"}, "'digits' is a known one"),
        ({"dataset": "digits", "label_noise": 0.1}, "label_noise is for gaussian"),
        ({"dataset": "digits", "n_train": -1}, "n_train must be"),
        ({"dataset": "gaussian", "n_train": 0}, "n_train must be"),
    ],
)
def test_protocols_of_images_are_checked(changes, words):
    with pytest.raises(UserError, match=words):
        Protocol.from_dict({"profile": "t", **changes})


def test_a_last_batch_of_one_is_refused_when_the_size_is_known():
    protocol = Protocol.from_dict({"profile": "t", "dataset": "digits", "n_train": 0, "n_val": 0, "n_test": 0,
                                   "batch_size": 64, "trials": 1})  # fmt: skip
    assert 1153 % 64 == 1
    with pytest.raises(UserError, match="batch_size 64 leaves a last batch of one of 1153"):
        load_splits(protocol, 0.0)


def test_gzipped_idx_files_alone_are_not_taken_for_the_set(root):
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    with gzip.open(raw / "train-images-idx3-ubyte.gz", "wb") as file:
        file.write(b"0")
    with pytest.raises(UserError, match="fashionmnist is broken"):
        images.load_images("fashionmnist")
