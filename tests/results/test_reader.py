import json
import os

import numpy as np
import pandas as pd
import pytest
from helpers.workspace import make_home, tree

from softadlib import _workspace
from softadlib._validation import UserError
from softadlib.results import reader as store
from softadlib.results.folder import ResultFolder
from softadlib.results.paths import profile_dir
from softadlib.results.provenance import Provenance, Session
from softadlib.results.schema import COLUMNS, MEASURES
from softadlib.results.table import merge, pack


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    return make_home(tmp_path)


def rows(trials=(0, 1), method="softad", noise=0.0, knob=0.3, epochs=(4,)):
    return merge(
        [
            pd.DataFrame(
                {
                    "dataset": "gaussian",
                    "method": method,
                    "trial": t,
                    "label_noise": noise,
                    "knob": knob,
                    "epoch": list(epochs),
                    **{m: 0.25 * (t + 1) for m in MEASURES},
                }
            )
            for t in trials
        ]
    )


SESSION = Session("2026-01-02T03:04:05+00:00", 6.0, "cpu", "2.9")


def facts(noise=(0.0,), sessions=(SESSION,), **protocol):
    sizes = {"trials": 2, "epochs": 4, "n_train": 80, "n_val": 80, "n_test": 80}
    known = {**sizes, "label_noise": list(noise), "grids": {}, "dtype": "float64", **protocol}
    return Provenance("tiny", "gaussian", "softad", 2, [], "f1", known, [17716], sessions)


def place(fingerprint="f1", method="softad"):
    return ResultFolder("tiny", "gaussian", method, fingerprint)


def test_suggestions_are_those_of_the_finished_protocol(home):
    place().save_suggestion(0.0, 1, {"theta": 0.2})
    place("of another protocol").save_suggestion(0.0, 0, {"theta": 0.9})
    assert not len(store.suggestions("tiny")), "nothing is finished"
    place().finish(rows(), facts())
    (place().path / "suggested" / "f1-0.0-0.json").write_text('{"theta": 0.')
    assert store.suggestions("tiny").to_dict("records") == [
        {"dataset": "gaussian", "method": "softad", "label_noise": 0.0, "trial": 1, "theta": 0.2}
    ]


def test_what_is_finished_is_read_back(home):
    place().finish(rows(), facts())
    pd.testing.assert_frame_equal(store.read("tiny"), rows())
    pd.testing.assert_frame_equal(place().stored_rows(), rows())
    stored = pd.read_parquet(home / "outputs/tiny/gaussian/softad/metrics.parquet")
    assert tuple(stored.columns) == COLUMNS, (
        "label noise that does not vary stands in the provenance"
    )


def test_label_noise_is_a_column_where_it_varies(home):
    both = merge([rows(), rows(noise=0.05)])
    place().finish(both, facts([0.0, 0.05]))
    assert "label_noise" in pd.read_parquet(place().metrics)
    pd.testing.assert_frame_equal(store.read("tiny"), both)
    assert store.read("tiny", label_noise=0.05)["label_noise"].unique().tolist() == [0.05]


def test_one_noise_that_is_not_zero_comes_from_the_provenance(home):
    place().finish(rows(noise=0.05), facts([0.05]))
    assert store.read("tiny")["label_noise"].unique().tolist() == [0.05]
    assert place().stored_rows()["label_noise"].unique().tolist() == [0.05]


def test_without_provenance_a_result_is_not_read(home):
    place().finish(rows(), facts())
    place().provenance.unlink()
    assert store.read("tiny").empty
    assert store.finished("tiny") == []


def test_rows_whose_label_noise_nothing_says_are_not_taken_for_another(home):
    place().finish(rows(noise=0.4), facts([0.4]))
    place().provenance.unlink()
    assert place().stored_rows().empty


def test_clearing_leaves_results_of_other_parameters(home):
    place().finish(rows(), facts())
    place("f2").save_part(rows((5,)))
    place("f2").clear()
    pd.testing.assert_frame_equal(place().stored_rows(), rows())
    assert place("f2").stored_rows().empty
    place().clear()
    assert place().files() == []


def test_parts_are_kept_until_the_end_and_only_for_their_protocol(home):
    place().save_part(rows((0,)))
    place().save_part(rows((1,)))
    place("f2").save_part(rows((5,)))
    pd.testing.assert_frame_equal(place().stored_rows(), rows((0, 1)))
    place().finish(rows(), facts())
    left = [p.name for p in (place().path / "parts").iterdir()]
    assert len(left) == 1, "another protocol's part is not ours to delete"
    assert left[0].startswith("f2-")
    pd.testing.assert_frame_equal(place("f2").stored_rows(), rows((5,)))


def test_a_part_saved_twice_is_one_part(home):
    place().save_part(rows((0,)))
    place().save_part(rows((0,)))
    assert len(list((place().path / "parts").iterdir())) == 1


def test_results_of_another_protocol_are_set_aside_unharmed(home):
    place("f1").finish(rows(), facts())
    before = place("f1").metrics.read_bytes()
    moved = place("f2").set_aside()
    assert moved.name == "softad.f1"
    assert (moved / "metrics.parquet").read_bytes() == before
    assert store.read("tiny").empty, "what is set aside is no result"
    place("f1").finish(rows(), facts())
    assert place("f2").set_aside().name == "softad.f1-2"


def test_merge_keeps_each_run_and_epoch_once_in_a_fixed_order():
    a, b = rows((1,), epochs=(0, 4)), rows((0, 1), epochs=(4,))
    merged = merge([a, b])
    assert merged[["trial", "epoch"]].to_numpy().tolist() == [[0, 4], [1, 0], [1, 4]]
    pd.testing.assert_frame_equal(merged, merge([b, a, b]))
    erm = merge([rows(method="erm", knob=np.nan)] * 2)
    assert len(erm) == 2, "a knob of NaN is equal to itself here"
    assert merge([]).columns.tolist() == [*COLUMNS[:3], "label_noise", *COLUMNS[3:]]


@pytest.mark.parametrize("cut", [0, 10, 0.5, -1])
def test_a_cut_table_is_named_with_what_to_do(home, cut):
    place().finish(rows(), facts())
    data = place().metrics.read_bytes()
    place().metrics.write_bytes(data[: int(len(data) * cut) if isinstance(cut, float) else cut])
    for read in (lambda: store.read("tiny"), lambda: place().stored_rows()):
        with pytest.raises(
            UserError, match=r"metrics.parquet is broken .*delete .*train it again: softad train"
        ) as caught:
            read()
        assert "\n" not in str(caught.value)


def test_rows_of_another_method_are_named(home):
    """As after `cp -r erm softad`: both have one fingerprint."""
    place().finish(rows(method="erm", knob=np.nan), facts())
    with pytest.raises(UserError, match=r"metrics.parquet has rows of gaussian × erm; delete "):
        store.read("tiny")


def test_a_table_without_a_column_is_named(home):
    place().finish(rows(), facts())
    pd.read_parquet(place().metrics).drop(columns="loss_val").to_parquet(place().metrics)
    with pytest.raises(UserError, match="lacks the columns loss_val"):
        store.read("tiny")


def test_a_broken_provenance_is_named(home):
    place().finish(rows(), facts())
    place().provenance.write_text('{"profile": ')
    with pytest.raises(UserError, match=r"provenance.json is broken"):
        store.provenances("tiny")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("protocol", "epochs"), "ten", "epochs is 'ten'"),
        (("protocol", "trials"), None, "trials is None"),
        (("protocol", "grids"), [0.1], r"grids is \[0.1\]"),
        (("protocol",), "smoke", "protocol is 'smoke'"),
        (("runs",), True, "runs is True"),
        (("sessions",), [], "label_noise and sessions must not be empty"),
        (("sessions", 0), "today", "a session is 'today'"),
        (("sessions", 0, "seconds"), "long", "seconds is 'long'"),
    ],
)
def test_a_provenance_with_a_fact_of_another_type_is_named(home, path, value, words):
    place().finish(rows(), facts())
    content = json.loads(place().provenance.read_text())
    part = content
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    place().provenance.write_text(json.dumps(content))
    with pytest.raises(UserError, match=rf"provenance.json is broken \({words}.*train it again"):
        store.provenances("tiny")


def test_a_broken_result_that_was_set_aside_is_not_taken_back(home):
    place("f1").finish(rows(), facts())
    aside = place("f1").set_aside()
    place("f2").finish(rows(), facts())
    assert place("f1").can_take_back()
    content = (aside / "metrics.parquet").read_bytes()
    for broken in (b"", content[:100]):
        (aside / "metrics.parquet").write_bytes(broken)
        assert not place("f1").can_take_back()
    (aside / "metrics.parquet").write_bytes(content)
    (aside / "provenance.json").write_text("{")
    assert not place("f1").can_take_back()


def test_taking_results_back_keeps_what_another_protocol_has_trained_so_far(home):
    """f1 is finished, f2 under way for hours, f1 asked for again, then f2: its parts are still there."""
    place("f1").finish(rows(), facts())
    place("f1").set_aside()
    place("f2").save_part(rows((0,)))
    parts = [path.name for path in place("f2").path.glob("parts/*")]
    assert len(parts) == 1
    assert place("f1").take_back()
    pd.testing.assert_frame_equal(place("f1").stored_rows(), rows())
    assert [path.name for path in place("f2").path.glob("parts/*")] == parts
    place("f2").set_aside()
    pd.testing.assert_frame_equal(place("f2").stored_rows(), rows((0,)))


@pytest.mark.parametrize("finished", [True, False])
def test_setting_aside_the_unfinished_moves_rows_and_keeps_what_else_is_under_way(home, finished):
    """More trials of a finished sweep, or a part of one that is under way: nothing is trained twice."""
    if finished:
        place("f1").finish(rows(), facts())
    place("f1").save_part(rows((2,)))
    (part,) = place("f1").path.glob("parts/*")
    place("f1").save_suggestion(0.0, 2, {"theta": 0.1})
    aside = place("f1").set_aside(unfinished=True)
    assert not part.exists()
    assert (aside / "parts" / part.name).exists()
    assert place("f1").read_suggestion(0.0, 2) == {"theta": 0.1}
    (moved,) = place("f1").aside()
    assert set(moved.stored_rows()["trial"]) == ({0, 1, 2} if finished else {2})


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


def test_write_is_whole_or_not_at_all(home, monkeypatch):
    path = home / "outputs" / "x.txt"
    _workspace.write(path, "first")

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(UserError, match=r"x.txt cannot be written: No space left on device"):
        _workspace.write(path, "second")
    assert path.read_text() == "first"
    assert [p.name for p in path.parent.iterdir()] == ["x.txt"], "no half-written file stays"


def test_an_output_folder_that_cannot_be_written_is_said_and_nothing_is(home):
    (home / "outputs").write_text("a file in the way")
    before = tree(home)
    with pytest.raises(UserError, match="cannot be written"):
        _workspace.check_writable(profile_dir("tiny"))
    with pytest.raises(UserError, match="cannot be written"):
        _workspace.write(place().metrics, b"x")
    assert tree(home) == before


def test_check_writable_leaves_nothing_behind(home):
    before = tree(home)
    _workspace.check_writable(profile_dir("tiny"))
    assert tree(home) == before
    assert not (home / "outputs").exists()


def test_home_is_found_named_or_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path / "gone"))
    with pytest.raises(UserError, match="SOFTAD_HOME"):
        _workspace.home()
    monkeypatch.delenv("SOFTAD_HOME")
    root = make_home(tmp_path / "book")
    (root / "notebooks" / "deep").mkdir()
    monkeypatch.chdir(root / "notebooks" / "deep")
    assert _workspace.home() == root


def test_provenances_are_one_line_a_result(home):
    session = Session("2026-01-02T03:04:05+00:00", 1.5, "cpu", "2", {"jobs": 2})
    protocol = {"n_train": 20, "n_val": 0, "n_test": 40, "trials": 2, "grids": {"softad": [0.3]}}
    protocol |= {"model": "linear", "optimizer": "sgd", "lr": 0.1, "momentum": 0.9}
    protocol |= {
        "weight_decay": 0.0,
        "batch_size": 50,
        "sigma": 2.0,
    }  # sigma as early versions had it
    made = facts(sessions=[session] * 2, **protocol, epochs=4, dtype="float64")
    place().finish(rows(), made)
    assert place().read_provenance() == made, "to the last fact"
    (line,) = store.provenances("tiny").to_dict("records")
    assert line["samples"] == "20 + all + 40"
    assert line["training"] == (
        "model linear, optimizer sgd, lr 0.1, momentum 0.9, weight_decay 0, batch_size 50, "
        "precision fp32, sigma 2, eta 1, scale code"
    )
    assert (line["runs"], line["grid"], line["seconds"], line["finished"]) == (
        2,
        1,
        3.0,
        "2026-01-02T03:04",
    )


@pytest.mark.parametrize(
    ("trained", "missing"), [([2], 0), ([1, 1], 0), ([1], 1), ([0, 1], 1), ([2, 2], 0), ([None], 2)]
)
def test_runs_without_a_session_are_counted(trained, missing):
    """Of two runs; a fresh training counts runs twice, and sessions of early versions say nothing."""
    counts = [{} if n is None else {"runs_trained": n} for n in trained]
    sessions = [Session("2026-01-02T03:04:05+00:00", 1.5, "cpu", "2", n) for n in counts]
    assert facts(sessions=sessions).runs_without_session == missing


def results(home):
    """Two methods, each with curves of one trial; of one method label noise varies."""
    ends = [rows((0, 1, 2), knob=k, epochs=(4,)) for k in (0.1, 0.3)]
    softad = merge([*ends, rows((1,), knob=0.3, epochs=(0, 2, 4))])
    place().finish(softad, facts())
    erm = [rows((0, 1), "erm", q, np.nan, (0, 2, 4)) for q in (0.0, 0.05)]
    place(method="erm").finish(merge(erm), facts([0.0, 0.05]))
    return merge([softad, *erm])


def test_final_rows_are_the_last_of_every_run_of_all_rows(home):
    every = results(home)
    pd.testing.assert_frame_equal(store.read("tiny"), every)
    ends = store.read("tiny", final=True)
    assert len(ends) == 6 + 4
    pd.testing.assert_frame_equal(ends, every[every["epoch"] == 4].reset_index(drop=True))
    noisy = store.read("tiny", label_noise=0.05, final=True)
    assert noisy[["method", "label_noise", "epoch"]].to_numpy().tolist() == [["erm", 0.05, 4]] * 2
    assert store.read("tiny", "spiral", final=True).dtypes.equals(ends.dtypes)


def test_final_rows_of_a_file_in_no_order_of_runs_that_end_apart(home):
    """A file that was put together elsewhere: shuffled, a row twice, one run of two epochs more."""
    every = results(home)
    longer = rows((2,), knob=0.1, epochs=(5, 6))
    one = every[every["method"] == "softad"]
    mixed = pd.concat([one, longer, one.iloc[:2]]).sample(frac=1, random_state=1)
    path = place().metrics
    path.write_bytes(pack(mixed.drop(columns="label_noise"), "f1"))
    pd.testing.assert_frame_equal(store.read("tiny"), merge([every, longer]))
    ends = store.read("tiny", "gaussian", final=True)
    got = ends.loc[ends["method"] == "softad", ["trial", "knob", "epoch"]].to_numpy().tolist()
    assert got == [[0, 0.1, 4], [0, 0.3, 4], [1, 0.1, 4], [1, 0.3, 4], [2, 0.1, 6], [2, 0.3, 4]]
