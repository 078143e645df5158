"""Files of results: what is stored comes back to the bit, and damage is said or mended."""

import os
import shutil
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from helpers.workspace import TINY, make_home, tree

from softadlib import _files
from softadlib._validation import MissingData, UserError
from softadlib.trainer.evaluation import LEVELS, MEASURES
from softadlib.workbook.studies import results
from softadlib.workbook.studies.parquet import (
    NOT_MEASURED,
    by_split,
    is_measured,
    merge,
    outputs,
    read_provenance,
)
from softadlib.workbook.studies.protocol import Protocol
from softadlib.workbook.studies.provenance import Provenance, Session
from softadlib.workbook.studies.schema import ALL_COLUMNS
from softadlib.workbook.studies.store import StudyStore

pytestmark = pytest.mark.usefixtures("home")
SESSION = Session(id="a", finished="2026-01-02T03:04:05+00:00", seconds=6.0, device="cpu", torch="2.9",
                  runs_trained=2, cores=2)  # fmt: skip


def rows(trials=(0, 1), knobs=(0.3,), epochs=(4,), method="softad", noise=0.0):
    """Rows of random measures, among them numbers that a text would not hold."""
    runs = [(t, k, e) for t in trials for k in knobs for e in epochs]
    frame = pd.DataFrame(runs, columns=["trial", "knob", "epoch"])
    frame = frame.assign(dataset="gaussian", method=method, label_noise=noise)
    draw = np.random.default_rng(len(runs)).normal(size=(len(runs), len(MEASURES)))
    draw[-1, :3] = np.nan, np.inf, 5e-324
    frame[list(MEASURES)] = draw
    return merge([frame[ALL_COLUMNS]])


def with_losses(of):
    """The same rows with losses of single samples, on all three splits."""
    columns = {}
    for i, split in enumerate(("train", "val", "test")):
        quantiles = [(LEVELS * (i + 1 + row)).astype(np.float32) for row in range(len(of))]
        columns[f"samples_{split}"] = 20.0
        columns[f"mean_loss_{split}"] = of["loss_test"]
        columns[f"quantiles_{split}"] = quantiles
    return merge([of.assign(**columns)])


def read_back(rows):
    """What `results.read` adds: what only the provenance knows."""
    return rows.assign(has_best_epoch=False)


def protocol(**changes):
    values = {"profile": "tiny", "dataset": "gaussian", **TINY, "grids": {"softad": [0.1, 0.3]}}
    return Protocol(**values | changes)


def provenance(method="softad", sessions=(SESSION,), **changes):
    made = protocol(**changes)
    return Provenance(
        profile="tiny",
        dataset="gaussian",
        method=method,
        fingerprint="f1",
        protocol=made.to_dict(),
        seeds=list(made.seeds),
        sessions=list(sessions),
    )


def study(method="softad"):
    return StudyStore("tiny", "gaussian", method)


def test_rows_and_provenance_come_back_to_the_bit():
    curve, ends = rows(knobs=(0.1, 0.3), epochs=(0,)), with_losses(rows(knobs=(0.1, 0.3)))
    stored, about = merge([curve, ends]), provenance()
    study().finish(stored, about)
    for read, expected in ((study().rows(), stored), (results.read("tiny"), read_back(stored))):
        pd.testing.assert_frame_equal(read, expected, check_exact=True)
        assert read["loss_test"].to_numpy().tobytes() == stored["loss_test"].to_numpy().tobytes()
    quantiles = study().rows()["quantiles_val"]
    assert quantiles.notna().tolist() == [False, True] * 4
    assert quantiles[1].dtype == np.float32
    assert read_provenance(study().file) == about
    assert about.sessions[0].cores == 2


def test_pandas_reads_a_file_with_all_that_was_measured():
    stored = merge([rows(epochs=(0,)), with_losses(rows()).assign(ece_val=0.25)])
    study().finish(stored, provenance())
    table = pd.read_parquet(outputs("tiny", "gaussian") / "softad.parquet")
    assert table["loss_test"].tolist()[:3] == stored["loss_test"].tolist()[:3]
    ends = table[table["epoch"] == 4]
    assert (ends["ece_val"] == 0.25).all()
    assert table.loc[table["epoch"] == 0, "ece_val"].isna().all()
    assert all(len(quantiles) == 101 for quantiles in ends["quantiles_test"])
    assert "prior_loss_test" not in table, "what was never measured has no column"
    code = results.read("tiny").drop(columns="has_best_epoch")
    assert list(table) == list(code), "what pandas shows is what the code works with"


def test_losses_by_split_are_a_line_for_each():
    stored = with_losses(rows((0,))).assign(plain_temperature=2.0, ece_train=0.1, ece_test=0.3)
    table = by_split(merge([rows((0,), epochs=(0,)), stored]))
    assert table["split"].tolist() == ["train", "val", "test"]
    assert table["epoch"].tolist() == [4, 4, 4]
    assert table["samples"].tolist() == [20, 20, 20]
    assert table["ece"].fillna(-1).tolist() == [0.1, -1, 0.3]
    assert table["plain_temperature"].tolist() == [2.0, 2.0, 2.0]
    assert table["quantiles"][2][1] == np.float32(0.03)
    assert by_split(rows()).empty


def test_losses_need_no_measures_of_their_epoch():
    """A diverged run is a row of NaN; where nothing of a run was taken but losses, it has no row."""
    diverged = rows((0,)).assign(**dict.fromkeys(MEASURES, np.nan))
    alone = with_losses(rows((1,))).assign(**{NOT_MEASURED: True})
    study().finish(merge([with_losses(diverged), alone]), provenance(curves="none"))
    stored = study().rows()
    assert is_measured(stored).tolist() == [True, False]
    assert results.read("tiny")["trial"].tolist() == [0]
    assert results.read("tiny")[list(MEASURES)].isna().all(axis=None)
    assert results.read_losses("tiny")["trial"].tolist() == [0] * 3 + [1] * 3
    later = merge([stored, rows((1,))])
    assert is_measured(later).all(), "measured by now"
    pd.testing.assert_series_equal(later["quantiles_test"], stored["quantiles_test"])
    assert later["loss_test"][1] == rows((1,))["loss_test"][0] or later["loss_test"].isna()[1]


def test_parts_count_until_the_study_is_finished():
    half = SESSION.model_copy(update={"runs_trained": 1, "seconds": 3.0})
    study().save_chunk(rows((0,)), provenance(sessions=[half]))
    study().save_chunk(rows((1,)), provenance())
    study().save_chunk(rows((1,)), provenance())
    study("sam").save_chunk(rows((5,), method="sam"), provenance("sam"))
    assert len(list(study().chunks_folder.iterdir())) == 2, "the same runs are the same file"
    assert study().rows()["trial"].tolist() == [0, 1]
    assert study().sessions() == [SESSION], "a session as its last part has it"
    assert results.read("tiny", final=True).empty
    study().finish(study().rows(), provenance())
    assert not study().chunks_folder.exists()
    assert study("sam").rows()["trial"].tolist() == [5]
    study("sam").clear()
    assert not study("sam").chunks_folder.parent.exists()
    assert study().rows()["trial"].tolist() == [0, 1]
    study().clear()
    assert not tree(study().folder)


def test_the_last_epoch_stays_as_the_first_training_had_it():
    """A replay brings the epochs before, and losses."""
    first = rows((0,))
    replay = with_losses(rows((0,), epochs=(0, 4)))
    study().save_chunk(replay, provenance(), replay=True)
    study().save_chunk(first, provenance())
    for _ in ("both in chunks", "the first finished"):
        stored = study().rows()
        assert stored["acc_test"][1] == first["acc_test"][0] != replay["acc_test"][1]
        assert stored["acc_test"][0] == replay["acc_test"][0]
        assert stored["samples_val"].tolist() == [20, 20], "the replay's"
        study().clear()
        study().finish(first, provenance())
        study().save_chunk(replay, provenance(), replay=True)


def test_of_the_same_run_and_epoch_the_last_frame_wins():
    first, last = rows((0, 1)), rows((1,), epochs=(0, 4)).assign(loss_test=7.0)
    merged = merge([first, last])
    assert merged[["trial", "epoch"]].to_numpy().tolist() == [[0, 4], [1, 0], [1, 4]]
    assert merged["loss_test"].tolist()[1:] == [7.0, 7.0]
    assert merge([last, first])["loss_test"][2] == first["loss_test"][1]
    both = merge([with_losses(first), with_losses(last)])
    assert both["mean_loss_val"].tolist()[1:] == [7.0, 7.0]
    lost = first.assign(**dict.fromkeys(MEASURES, np.nan))
    assert merge([first, lost])["acc_test"].isna().all(), "NaN is a measure: it diverged"
    erm = rows(method="erm", knobs=(np.nan,))
    assert len(merge([erm, erm])) == 2, "NaN is one value of the hyperparameter"


def damaged(content):
    """Yield shorter and altered copies of a file's content."""
    for length in (0, 10, len(content) // 2, len(content) - 1):
        yield content[:length]
    for at in range(4, len(content), len(content) // 30):
        yield content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


def test_a_damaged_file_of_a_finished_study_is_one_line_and_never_other_numbers():
    study().finish(with_losses(rows()), provenance())
    path = study().file
    way_out = "delete it, then train what is missing: softad train tiny --dataset gaussian --method softad"
    both = [partial(read, "tiny") for read in (results.read, results.read_losses)]
    reads = study().rows, *both
    whole, content, said = [read() for read in reads], path.read_bytes(), []
    for copy in damaged(content):
        path.write_bytes(copy)
        try:
            assert all(read().equals(before) for read, before in zip(reads, whole))
        except UserError as error:
            said.append(str(error))
    assert len(said) > 10
    for line in said:
        assert line.startswith(f"{path} is broken (")
        assert line.endswith(f"; {way_out}")
        assert "\n" not in line
    study().clear()
    assert study().rows().empty


def test_a_file_whose_columns_were_renamed_is_broken():
    study().finish(with_losses(rows()), provenance())
    path = study().file
    table = pq.read_table(path)
    other = {"loss_val": "loss_test", "loss_test": "loss_val"}
    names = [other.get(name, name) for name in table.column_names]
    metadata = table.schema.metadata
    pq.write_table(table.rename_columns(names).replace_schema_metadata(metadata), path)
    with pytest.raises(UserError, match="is broken"):
        study().rows()


def test_a_damaged_part_counts_as_none():
    study().save_chunk(with_losses(rows()), provenance())
    whole, lost = study().rows(), 0
    (path,) = study().chunks_folder.iterdir()
    for copy in damaged(path.read_bytes()):
        path.write_bytes(copy)
        stored = study().rows()
        assert stored.empty or stored.equals(whole)
        assert study().sessions() in ([], [SESSION])
        lost += stored.empty
    assert lost > 10


def test_rows_of_another_method_and_a_file_without_a_column_are_named():
    # As after `cp erm.parquet softad.parquet`.
    study().finish(with_losses(rows()), provenance("erm"))
    with pytest.raises(UserError, match=r"is broken \(it has rows of gaussian × erm\)"):
        results.read("tiny")
    study().finish(with_losses(rows()), provenance())
    pd.read_parquet(study().file).drop(columns="loss_val").to_parquet(study().file)
    with pytest.raises(UserError, match=r"softad.parquet is broken "):
        results.read("tiny")


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "..", ".hidden", "", "a\\b"])
def test_names_never_lead_out_of_outputs(home, name):
    before = tree(home)
    for make in (
        lambda: outputs(name),
        lambda: StudyStore("tiny", name, "softad").folder,
        lambda: results.read(name),
        lambda: protocol(profile=name),
    ):
        with pytest.raises(UserError) as caught:
            make()
        assert "\n" not in str(caught.value)
    assert tree(home) == before


@pytest.mark.parametrize("link", [".", "tiny", "tiny/gaussian"])
def test_results_may_lie_on_another_disk(home, tmp_path_factory, link):
    outside = tmp_path_factory.mktemp("elsewhere")
    path = home / "outputs" / link
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(outside)
    with study().lock():
        study().finish(with_losses(rows()), provenance())
    assert (home / "outputs/tiny/gaussian/softad.parquet").exists()
    assert list(outside.rglob("softad.parquet"))
    assert path.is_symlink()
    pd.testing.assert_frame_equal(results.read("tiny"), read_back(with_losses(rows())))


def test_an_unknown_profile_is_one_line_with_the_choices():
    study().finish(with_losses(rows()), provenance())
    words = r"profile 'tniy' has no results in .*; there are: tiny$"
    for read in (results.read, results.read_losses, results.provenances):
        with pytest.raises(UserError, match=words):
            read("tniy")


def test_only_what_the_protocol_asks_for_is_read():
    """A file keeps runs of a larger grid, of more trials and of other label noises."""
    kept = merge([rows((0, 1, 2), (0.1, 0.2, 0.3)), rows((0,), noise=0.1)])
    study().finish(with_losses(kept), provenance())
    asked = kept.query("trial < 2 and knob != 0.2 and label_noise == 0").reset_index(drop=True)
    read = results.read("tiny")[list(asked)]
    pd.testing.assert_frame_equal(read, asked)
    assert set(results.read_losses("tiny")["trial"]) <= {0, 1}
    assert results.provenances("tiny")["runs"].tolist() == [4]


def test_losses_are_read_of_the_runs_that_are_selected_now():
    """By ties to the largest value, then to the smallest; the file holds both."""
    tied = rows((0,), (0.1, 0.3)).assign(acc_val=0.9)
    for ties, knob in (("largest", 0.3), ("smallest", 0.1)):
        study().finish(with_losses(tied), provenance(ties=ties))
        assert set(results.read_losses("tiny")["knob"]) == {knob}
    study().finish(with_losses(tied), provenance(curves="none"))
    assert set(results.read_losses("tiny")["knob"]) == {0.1, 0.3}, "stored by somebody's own choice"


def test_rows_by_dataset_label_noise_and_last_epoch():
    curves = [rows((0, 1), (0.1,)), rows((0,), (0.3,), (0, 2, 4))]
    noisy = rows((0, 1), (np.nan,), (0, 4), "erm", 0.05)
    study().finish(merge(curves), provenance())
    noises = provenance("erm", label_noise=[0.0, 0.05])
    study("erm").finish(with_losses(noisy), noises)
    every = merge([*curves, noisy])
    pd.testing.assert_frame_equal(results.read("tiny")[ALL_COLUMNS], every)
    ends = results.read("tiny", "gaussian", final=True)
    pd.testing.assert_frame_equal(
        ends[ALL_COLUMNS], every.query("epoch == 4").reset_index(drop=True)
    )
    assert results.read("tiny", label_noise=0.05, final=True)["method"].tolist() == ["erm", "erm"]
    assert results.read_losses("tiny", label_noise=0.05)["method"].unique().tolist() == ["erm"]
    none = results.read("tiny", label_noise=0.3)
    assert none.dtypes[ALL_COLUMNS].equals(ends.dtypes[ALL_COLUMNS])


@pytest.mark.parametrize("read", [results.read, results.read_losses])
def test_a_dataset_without_results_is_named_with_those_that_have_some(read):
    study().finish(rows((0, 1), (0.1,)), provenance())
    with pytest.raises(MissingData, match="no results of 'gausian'; there are those of: gaussian"):
        read("tiny", "gausian")


def test_provenances_are_one_line_a_result():
    again = SESSION.model_copy(
        update={"id": "b", "finished": "2026-01-03T03:04:05+00:00", "runs_trained": 0}
    )
    changes = {"dataset": "digits", "n_val": 0, "lr": 0.05, "settings": {"softad": {"sigma": 2.0}}}
    about = provenance(sessions=[SESSION, again], **changes)
    stored = rows((0, 1), (0.1, 0.3)).assign(loss_val=[0.1, np.inf, 0.2, 0.3])
    stored = stored.assign(loss_train=[0.1, 0.1, 1e13, 0.1], loss_test=[0.1, 0.2, 0.3, np.nan])
    study().finish(stored, about)
    (line,) = results.provenances("tiny").to_dict("records")
    assert line == {
        "dataset": "gaussian",
        "method": "softad",
        "runs": 4,
        "diverged": 3,
        "trials": 2,
        "label_noise": "0",
        "grid": 2,
        "span": "0.1 to 0.3",
        "epochs": 4,
        "samples": "20 + all + 40",
        "training": "model linear, optimizer sgd, lr 0.05, lr_schedule constant, momentum 0, "
        "weight_decay 0, batch_size 10, "
        "precision fp32, sigma 2, eta 1, scale code",
        "dtype": "float64",
        "device": "cpu",
        "torch": "2.9",
        "seconds": 12.0,
        "finished": "2026-01-03T03:04",
    }


def test_temporary_files_of_killed_processes_go_after_an_hour():
    study().save_chunk(rows(), provenance())
    parts = study().chunks_folder
    old, new, other = parts / ".x.pt.12", parts / ".y.pt.13", study().folder / ".sam.12"
    for path in (old, new, other):
        path.write_text("half")
    for path in (old, other):
        os.utime(path, (time.time() - 4000,) * 2)
    study().delete_temporary_files()
    assert [path.exists() for path in (old, new, other)] == [False, True, True]
    assert study().rows()["trial"].tolist() == [0, 1]


def test_results_are_read_where_the_locale_is_not_utf_8(home, tmp_path):
    """In a folder whose name the locale cannot spell; such results were called broken."""
    folder = tmp_path / "hö me ☃"
    folder.mkdir()
    study().finish(rows(), provenance())
    shutil.copytree(home / "outputs", folder / "outputs")
    code = "from softadlib.workbook.studies import results; print(len(results.read('tiny')))"
    latin = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    read = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **latin, "SOFTAD_HOME": str(folder)},
        capture_output=True,
        text=True,
    )
    assert read.stdout == "2\n", read.stderr


# Any file


def test_a_link_under_a_temporary_name_is_not_followed(tmp_path):
    """Two containers on one disk may share process ids, and somebody may plant a link."""
    (tmp_path / "theirs").write_text("theirs")
    for number in (os.getpid(), 0):
        (tmp_path / f".a.txt.{number}").symlink_to(tmp_path / "theirs")
    umask = os.umask(0o022)
    try:
        _files.write(tmp_path / "a.txt", "ours")
    finally:
        os.umask(umask)
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert (tmp_path / "a.txt").read_text() == "ours"
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o644, "others may read results"


def test_links_pipes_and_devices_are_written_to_and_not_replaced(tmp_path):
    target, link, pipe = (tmp_path / name for name in ("target", "link", "pipe"))
    target.write_text("before")
    link.symlink_to(target)
    _files.write(link, "after")
    assert (link.is_symlink(), target.read_text()) == (True, "after")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    _files.write(pipe, "through")
    assert (os.read(reader, 20), pipe.is_fifo()) == (b"through", True)
    os.close(reader)
    with pytest.raises(UserError, match="cannot be written: Is a directory"):
        _files.write(tmp_path, "no")


def test_a_folder_that_cannot_be_written_is_one_line_and_a_check_leaves_nothing(home):
    before = tree(home)
    _files.check_writable(study().folder)
    assert not (home / "outputs").exists()
    (home / "outputs").write_text("a file in the way")
    for write in (_files.check_writable, lambda folder: _files.write(folder / "x", b"x")):
        with pytest.raises(UserError, match="cannot be written"):
            write(study().folder)
    (home / "outputs").unlink()
    assert tree(home) == before


def test_home_is_found_named_or_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path / "gone"))
    with pytest.raises(UserError, match="SOFTAD_HOME"):
        _files.home()
    monkeypatch.delenv("SOFTAD_HOME")
    root = make_home(tmp_path / "book")
    (root / "notebooks" / "deep").mkdir()
    monkeypatch.chdir(root / "notebooks" / "deep")
    assert _files.home() == root


def test_a_part_that_is_written_while_a_study_is_put_together_stays():
    study().save_chunk(rows((0,)), provenance())
    parts, stored = study().finished_chunks(), study().rows()
    study().save_chunk(rows((1,)), provenance())
    study().finish(stored, provenance(), parts)
    assert study().rows()["trial"].tolist() == [0, 1]
    (part,) = study().chunks_folder.glob("*.parquet")
    part.write_bytes(part.read_bytes()[:90])
    assert study().rows()["trial"].tolist() == [0], "a damaged part counts as none"
