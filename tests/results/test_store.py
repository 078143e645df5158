"""Files of results: what is stored comes back to the bit, and damage is said or mended."""

import os
import time
from functools import partial

import numpy as np
import pandas as pd
import pytest
from helpers.workspace import TINY, make_home, tree

from softadlib import _workspace, results
from softadlib._validation import UserError
from softadlib.results.schema import ALL_COLUMNS, CALIBRATION, LEVELS, LINKED, MEASURES, RUN_KEY
from softadlib.results.store import (
    Facts,
    Session,
    StudyStore,
    finished,
    merge,
    merge_losses,
    outputs,
    pack,
    read_facts,
    stored_facts,
)
from softadlib.training.protocol import Protocol

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


def losses(of):
    """Losses of single samples of these runs and epochs, on all three parts."""
    frames = []
    for part in ("test", "train", "val"):
        keys = of[["dataset", "method", *RUN_KEY, "epoch"]]
        quantiles = [(LEVELS * (i + 1)).astype(np.float32) for i in range(len(of))]
        frames.append(keys.assign(part=part, samples=20, loss=of["loss_test"], quantiles=quantiles))
        frames[-1][CALIBRATION] = np.nan
    return merge_losses(frames)


def protocol(**changes):
    values = {"profile": "tiny", "dataset": "gaussian", **TINY, "grids": {"softad": [0.1, 0.3]}}
    return Protocol(**values | changes)


def facts(fingerprint="f1", method="softad", sessions=(SESSION,), asked="", **changes):
    made = protocol(**changes)
    return Facts(
        profile="tiny",
        dataset="gaussian",
        method=method,
        fingerprint=fingerprint,
        protocol=made.to_dict(),
        seeds=list(made.seeds),
        sessions=list(sessions),
        asked=asked,
    )


def study(fingerprint="f1", method="softad"):
    return StudyStore("tiny", "gaussian", method, fingerprint)


def test_rows_losses_and_facts_come_back_to_the_bit():
    stored, of_samples, about = rows(knobs=(0.1, 0.3), epochs=(0, 4)), losses(rows()), facts()
    study().finish(stored, of_samples, about)
    for read in (study().rows(), results.read("tiny")):
        pd.testing.assert_frame_equal(read, stored, check_exact=True)
        assert read["loss_test"].to_numpy().tobytes() == stored["loss_test"].to_numpy().tobytes()
    pd.testing.assert_frame_equal(study().losses(), of_samples, check_exact=True)
    assert study().losses()["part"].tolist()[:3] == ["train", "val", "test"]
    assert study().losses()["quantiles"][0].dtype == np.float32
    assert read_facts(study().file) == [about]
    assert about.sessions[0].cores == 2


def test_losses_from_before_the_columns_of_class_probabilities_read_as_nan():
    of_samples = losses(rows())
    study().finish(rows(), of_samples.drop(columns=LINKED), facts())
    pd.testing.assert_frame_equal(study().losses(), of_samples, check_exact=True)
    pd.testing.assert_frame_equal(results.read_losses("tiny"), of_samples, check_exact=True)
    study().finish(rows(), of_samples.drop(columns="ece"), facts())
    with pytest.raises(UserError, match=r"losses.parquet is broken .*ece"):
        results.read_losses("tiny")


def test_parts_count_until_the_study_is_finished_and_only_for_their_protocol():
    half = SESSION.model_copy(update={"runs_trained": 1, "seconds": 3.0})
    study().save_part(rows((0,)), losses(rows((0,))), half)
    study().save_part(rows((1,)), losses(rows((1,))), SESSION)
    study().save_part(rows((1,)), losses(rows((1,))), SESSION)
    study("f2").save_part(rows((5,)), losses(rows((5,)).head(0)), SESSION)
    assert len(list(study().parts.iterdir())) == 2 + 2 + 1, "the same runs are the same file"
    assert study().rows()["trial"].tolist() == [0, 1]
    assert set(study().losses()["trial"]) == {0, 1}
    assert study().sessions() == [SESSION], "a session as its last part has it"
    assert results.read("tiny", final=True).empty
    study().finish(study().rows(), study().losses(), facts())
    assert not study().finished_parts()
    assert [path.name[:3] for path in study().parts.iterdir()] == ["f2-"]
    study("f2").clear()
    assert not study().parts.exists()
    assert study().rows()["trial"].tolist() == [0, 1]
    study().clear()
    assert not tree(study().folder)


def test_packed_studies_are_read_as_before_to_the_bit_and_go_on_from_there():
    """Studies with losses and without, with and without quantiles; one of an earlier protocol."""
    erm, none = rows(method="erm", knobs=(np.nan,)), losses(rows()).head(0)
    study("f1").finish(rows(), losses(rows()), facts())
    study("f2", "erm").finish(erm, losses(erm).assign(quantiles=None), facts("f2", "erm"))
    study("f3", "sam").finish(rows(method="sam"), none, facts("f3", "sam"))
    study("f0").finish(rows((0,)), none, facts("f0", sessions=[]))
    readers = (results.read, results.read_losses, results.provenances, finished, stored_facts)
    before = [read("tiny") for read in readers]
    pack("tiny")
    assert set(tree(outputs("tiny"))) == {"studies.parquet", "studies-losses.parquet"}
    for earlier, read in zip(before[:3], readers):
        pd.testing.assert_frame_equal(read("tiny"), earlier, check_exact=True)
    assert finished("tiny") == before[3]
    assert {of.fingerprint for of in stored_facts("tiny")} == {"f0", "f1", "f2", "f3"}
    assert study("f1").facts() == facts()
    assert study("f0").of_other_protocols() == [study("f1")]
    # More trials go to a file of their own, which holds the packed ones too.
    study().save_part(rows((2,)), losses(rows((2,))), SESSION)
    assert study().rows()["trial"].tolist() == [0, 1, 2]
    study().finish(study().rows(), study().losses(), facts(trials=3))
    assert results.read("tiny").query("method == 'softad'")["trial"].tolist() == [0, 1, 2]
    assert [of.fingerprint for of in stored_facts("tiny")].count("f1") == 1
    study("f2", "erm").clear()
    assert not list(outputs("tiny").glob("*.parquet"))
    assert results.read("tiny")["method"].value_counts().to_dict() == {"softad": 3, "sam": 2}


def test_of_the_same_run_and_epoch_the_last_frame_wins():
    first, last = rows((0, 1)), rows((1,), epochs=(0, 4)).assign(loss_test=7.0)
    merged = merge([first, last])
    assert merged[["trial", "epoch"]].to_numpy().tolist() == [[0, 4], [1, 0], [1, 4]]
    assert merged["loss_test"].tolist()[1:] == [7.0, 7.0]
    assert merge([last, first])["loss_test"][2] == first["loss_test"][1]
    assert merge_losses([losses(first), losses(last)]).query("trial == 1")["loss"].eq(7).all()
    erm = rows(method="erm", knobs=(np.nan,))
    assert len(merge([erm, erm])) == 2, "NaN is one value of the hyperparameter"


def damaged(content):
    """Yield shorter and altered copies of a file's content."""
    for length in (0, 10, len(content) // 2, len(content) - 1):
        yield content[:length]
    for at in range(4, len(content), 97):
        yield content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


@pytest.mark.parametrize("name", ["file", "losses_file", "packed"])
def test_a_damaged_file_of_a_finished_study_is_one_line_and_never_other_numbers(name):
    study().finish(rows(), losses(rows()), facts())
    path = outputs("tiny", "studies.parquet") if name == "packed" else getattr(study(), name)
    way_out = "delete it, then train what is missing: softad train tiny --dataset gaussian --method softad"
    if name == "packed":
        pack("tiny")
        way_out = f"restore it, for example: git checkout {path}"
    both = [partial(read, "tiny") for read in (results.read, results.read_losses)]
    reads = study().rows, study().losses, *both
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
    if name != "packed":
        study().clear()
        assert study().rows().empty


def test_a_damaged_part_counts_as_none():
    study().save_part(rows(), losses(rows()), SESSION)
    study().save_fold(0.0, 0, "1-of-2", np.array([0.1, 0.2]))
    study().save_held_out(0.0, 1, np.array([0.3, 0.4]))
    whole, lost = rows(), {path.suffix: 0 for path in study().parts.iterdir()}
    for path in sorted(study().parts.iterdir()):
        content = path.read_bytes()
        for copy in damaged(content):
            path.write_bytes(copy)
            stored, of_samples = study().rows(), study().losses()
            assert stored.empty or stored.equals(whole)
            assert of_samples.empty or len(of_samples) == 6
            assert study().sessions() in ([], [SESSION]) or "parquet" in path.name
            fold, held_out = study().read_fold(0.0, 0, "1-of-2"), study().held_out()
            assert fold is None or fold.tolist() == [0.1, 0.2]
            assert not held_out or held_out["0.0 1"].tolist() == [0.3, 0.4]
            lost[path.suffix] += stored.empty or of_samples.empty or fold is None or not held_out
        path.write_bytes(content)
    assert min(lost.values()) > 10


def test_rows_of_another_method_and_a_file_without_a_column_are_named():
    study().finish(rows(), losses(rows()), facts(method="erm"))  # as after `cp -r erm softad`
    with pytest.raises(UserError, match=r"is broken \(it has rows of gaussian × erm\)"):
        results.read("tiny")
    study().finish(rows().drop(columns="loss_val"), losses(rows()), facts())
    with pytest.raises(UserError, match=r"f1.parquet is broken .*loss_val"):
        results.read("tiny")


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/b", "..", ".hidden", "", "a\\b", "a\0b"])
def test_names_never_lead_out_of_outputs(home, name):
    before = tree(home)
    for make in (
        lambda: outputs(name),
        lambda: StudyStore("tiny", name, "softad", "f").folder,
        lambda: results.read(name),
        lambda: protocol(profile=name),
    ):
        with pytest.raises(UserError) as caught:
            make()
        assert "\n" not in str(caught.value)
    assert tree(home) == before


@pytest.mark.parametrize("link", ["tiny", "tiny/gaussian", "tiny/gaussian/softad"])
def test_a_link_that_leads_out_is_refused_but_outputs_itself_may_be_one(
    home, tmp_path_factory, link
):
    outside = tmp_path_factory.mktemp("elsewhere")
    path = home / "outputs" / link
    path.parent.mkdir(parents=True)
    path.symlink_to(outside)
    with pytest.raises(UserError, match="leads out of"), study().lock():
        pass
    assert list(outside.iterdir()) == []
    os.rename(home / "outputs", home / "old")
    (home / "outputs").symlink_to(outside)
    study().finish(rows(), losses(rows()), facts())
    assert (outside / "tiny/gaussian/softad/f1.parquet").exists()


def test_an_unknown_profile_is_one_line_with_the_choices():
    study().finish(rows(), losses(rows()), facts())
    for read in (results.read, results.read_losses, results.provenances):
        with pytest.raises(
            UserError, match=r"profile 'tniy' has no results in .*; there are: tiny$"
        ):
            read("tniy")


def test_only_what_the_protocol_asks_for_is_read():
    """A file keeps runs of a larger grid, of more trials and of other label noises."""
    kept = merge([rows((0, 1, 2), (0.1, 0.2, 0.3)), rows((0,), noise=0.1)])
    study().finish(kept, losses(kept), facts())
    asked = kept.query("trial < 2 and knob != 0.2 and label_noise == 0").reset_index(drop=True)
    pd.testing.assert_frame_equal(results.read("tiny"), asked)
    assert set(results.read_losses("tiny")["trial"]) <= {0, 1}
    assert results.provenances("tiny")["runs"].tolist() == [4]


def test_losses_are_read_of_the_runs_that_are_selected_now():
    """By ties to the largest value, then to the smallest; the file holds both."""
    tied = rows((0,), (0.1, 0.3)).assign(acc_val=0.9)
    for ties, knob in (("largest", 0.3), ("smallest", 0.1)):
        study().finish(tied, losses(tied), facts(ties=ties))
        assert set(results.read_losses("tiny")["knob"]) == {knob}
    study().finish(tied, losses(tied), facts(curves="none"))
    assert set(results.read_losses("tiny")["knob"]) == {0.1, 0.3}, "stored by somebody's own choice"


def test_rows_by_dataset_label_noise_and_last_epoch():
    curves = [rows((0, 1), (0.1,)), rows((0,), (0.3,), (0, 2, 4))]
    noisy = rows((0, 1), (np.nan,), (0, 4), "erm", 0.05)
    study().finish(merge(curves), losses(rows()), facts())
    study("f2", "erm").finish(noisy, losses(noisy), facts("f2", "erm", label_noise=[0.0, 0.05]))
    every = merge([*curves, noisy])
    pd.testing.assert_frame_equal(results.read("tiny"), every)
    ends = results.read("tiny", "gaussian", final=True)
    pd.testing.assert_frame_equal(ends, every.query("epoch == 4").reset_index(drop=True))
    assert results.read("tiny", label_noise=0.05, final=True)["method"].tolist() == ["erm", "erm"]
    assert results.read_losses("tiny", label_noise=0.05)["method"].unique().tolist() == ["erm"]
    assert results.read("tiny", "spiral").dtypes.equals(ends.dtypes)


def test_provenances_are_one_line_a_result():
    again = SESSION.model_copy(
        update={"id": "b", "finished": "2026-01-03T03:04:05+00:00", "runs_trained": 0}
    )
    changes = {"dataset": "digits", "n_val": 0, "lr": 0.05, "settings": {"softad": {"sigma": 2.0}}}
    about = facts(sessions=[SESSION, again], asked="2027-01-01T00:00:00+00:00", **changes)
    stored = rows((0, 1), (0.1, 0.3)).assign(loss_val=[0.1, np.inf, 0.2, 0.3])
    stored = stored.assign(loss_train=0.1, loss_test=[0.1, 0.2, 0.3, np.nan])
    study().finish(stored, losses(rows()), about)
    (line,) = results.provenances("tiny").to_dict("records")
    assert line == {
        "dataset": "gaussian",
        "method": "softad",
        "runs": 4,
        "diverged": 2,
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
        "runs_without_session": 2,
        "finished": "2026-01-03T03:04",
    }


def test_temporary_files_of_killed_processes_go_after_an_hour():
    study().save_part(rows(), losses(rows()), SESSION)
    old, new, other = (
        study().parts / f".{name}" for name in ("f1-x.pt.12", "f1-y.pt.13", "f2-x.pt.12")
    )
    for path in (old, new, other):
        path.write_text("half")
    for path in (old, other):
        os.utime(path, (time.time() - 4000,) * 2)
    study().delete_temporary_files()
    assert [path.exists() for path in (old, new, other)] == [False, True, True]
    assert study().rows()["trial"].tolist() == [0, 1]


# Any file


def test_links_pipes_and_devices_are_written_to_and_not_replaced(tmp_path):
    target, link, pipe = (tmp_path / name for name in ("target", "link", "pipe"))
    target.write_text("before")
    link.symlink_to(target)
    _workspace.write(link, "after")
    assert (link.is_symlink(), target.read_text()) == (True, "after")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    _workspace.write(pipe, "through")
    assert (os.read(reader, 20), pipe.is_fifo()) == (b"through", True)
    os.close(reader)
    with pytest.raises(UserError, match="cannot be written: Is a directory"):
        _workspace.write(tmp_path, "no")


def test_a_folder_that_cannot_be_written_is_one_line_and_a_check_leaves_nothing(home):
    before = tree(home)
    _workspace.check_writable(study().folder)
    assert not (home / "outputs").exists()
    (home / "outputs").write_text("a file in the way")
    for write in (_workspace.check_writable, lambda folder: _workspace.write(folder / "x", b"x")):
        with pytest.raises(UserError, match="cannot be written"):
            write(study().folder)
    (home / "outputs").unlink()
    assert tree(home) == before


def test_home_is_found_named_or_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path / "gone"))
    with pytest.raises(UserError, match="SOFTAD_HOME"):
        _workspace.home()
    monkeypatch.delenv("SOFTAD_HOME")
    root = make_home(tmp_path / "book")
    (root / "notebooks" / "deep").mkdir()
    monkeypatch.chdir(root / "notebooks" / "deep")
    assert _workspace.home() == root


def test_a_study_of_over_a_million_rows_is_packed_whole():
    """Parquet writers begin another group of rows after 1,048,576."""
    long, erm = rows((0,), epochs=range(1_048_580)), rows(method="erm", knobs=(np.nan,))
    study().finish(long, losses(long).head(0), facts())
    study("f2", "erm").finish(erm, losses(erm), facts("f2", "erm"))
    pack("tiny")
    pd.testing.assert_frame_equal(study().rows(), long, check_exact=True)
    pd.testing.assert_frame_equal(study("f2", "erm").rows(), erm, check_exact=True)


def test_a_part_that_is_written_while_a_study_is_put_together_stays():
    study().save_part(rows((0,)), losses(rows((0,))), SESSION)
    parts, stored, of_samples = study().finished_parts(), study().rows(), study().losses()
    study().save_part(rows((1,)), losses(rows((1,))), SESSION)
    study().finish(stored, of_samples, facts(), parts)
    assert study().rows()["trial"].tolist() == [0, 1]
    (of_samples,) = study().parts.glob("*-losses.parquet")
    of_samples.write_bytes(of_samples.read_bytes()[:90])
    assert study().rows()["trial"].tolist() == [0], "rows whose losses are damaged are made again"
