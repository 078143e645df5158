"""What an earlier accident may have left: found again, mended or said in one line. And a second writer."""

import contextlib
import datetime
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from helpers.workspace import TINY, make_home, read_provenance, tree, write_notebook

import softadlib
from softadlib import _workspace
from softadlib._validation import UserError
from softadlib.results import folder as places
from softadlib.results import locks
from softadlib.results import reader as store
from softadlib.results.folder import ResultFolder, lock_results
from softadlib.results.paths import profile_dir
from softadlib.training import study
from softadlib.training.executors import train_task
from softadlib.training.protocol import Protocol
from softadlib.workbook import cli
from softadlib.workbook.notebooks import plan as plans
from softadlib.workbook.prepare import Selection, prepare


class Accident(BaseException):
    pass


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAD_HOME", str(tmp_path))
    return make_home(tmp_path, ("train",))


def protocol(**changes):
    facts = {"profile": "tiny", "dataset": "gaussian", "device": "cpu"}
    return Protocol.from_dict({**facts, **TINY, **changes})


def keep_rows(made):
    return lambda rows, losses: place(made).save_part(rows)


def place(made):
    return ResultFolder("tiny", "gaussian", "softad", made.fingerprint("softad"))


def stopped(made, epochs):
    """A call cut after so many epochs of runs."""
    count = 0

    def tick(units):
        nonlocal count
        count += units
        if count >= epochs:
            raise Accident

    with pytest.raises(Accident):
        study.run(made, "softad", progress=tick)


def trained(made):
    """How many runs each call has trained, as the provenance tells."""
    sessions = read_provenance(place(made).provenance)["sessions"]
    return [s["runs_trained"] for s in sessions]


# Two writers


OTHER = """
import json, os, sys
from softadlib._validation import UserError
from softadlib.results.folder import lock_results
for line in sys.stdin:
    shared, family, *methods = json.loads(line)
    os.environ["SOFTAD_LOCK_OWNER"] = family
    try:
        with lock_results("tiny", [("gaussian", m) for m in methods], shared):
            said = "claimed"
    except UserError as error:
        said = error
    print(said, flush=True)
"""


@pytest.fixture
def other():
    """Another process that tries to claim, and says what came of it."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def lock(*methods, shared=False, family=""):
            process.stdin.write(json.dumps([shared, family, *methods]) + "\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        yield lock


def test_a_pair_is_claimed_by_one_or_shared_by_several(home, other):
    with lock_results("tiny", [("gaussian", "sam")]):
        refusal = f"tiny: gaussian × sam is under way already, by process {os.getpid()} on"
        assert refusal in other("erm", "sam")
        assert refusal in other("sam", shared=True)
        assert other("erm") == "claimed"
        assert other("sam", family=os.environ[locks.OWNER]) == "claimed", "a child of this one"
        with lock_results("tiny", [("gaussian", "sam")]):  # and this one itself
            pass
        assert refusal in other("sam")
    with lock_results("tiny", [("gaussian", "sam")], shared=True):
        assert other("sam", shared=True) == "claimed"
        assert "is under way already" in other("sam")
        assert "is under way already" in other("sam", family=os.environ[locks.OWNER])
    assert other("sam") == "claimed"
    assert (home / "outputs/tiny/gaussian/.sam.lock").exists(), "the file stays, the lock does not"
    assert locks.OWNER not in os.environ


def test_what_killed_processes_left_is_swept_unless_somebody_works_there(home):
    folder = home / "outputs" / "tiny"
    made = [folder / "gaussian" / "sam" / ".metrics.parquet.123", folder / ".index.html.9",
            folder / "figures" / ".table.77.ipynb"]  # fmt: skip
    kept = [folder / "gaussian" / "sam" / "metrics.v2", folder / "figures" / ".hidden"]
    for path in (*made, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    with lock_results("tiny", [("gaussian", "softad")]):
        assert not [p for p in made if p.exists()]
        made[1].write_text("of somebody at work")
        with lock_results("tiny", [("gaussian", "erm")]):
            assert made[1].exists()
    files = {p for p in folder.rglob("*") if p.is_file() and not p.name.endswith("lock")}
    assert files == {*kept, made[1]}


def test_without_locks_work_goes_on(home, monkeypatch):
    def none(*args):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", none)
    half_written = home / "outputs/tiny/gaussian/.metrics.parquet.4711"
    half_written.parent.mkdir(parents=True)
    half_written.touch()
    with lock_results("tiny", [("gaussian", "softad")]):
        pass
    assert half_written.exists(), "whoever writes it may be at work: nothing tells"
    monkeypatch.setattr(locks, "fcntl", None)
    with lock_results("tiny", [("gaussian", "softad")]):
        pass


def test_a_full_disk_does_not_leave_half_a_line_that_locks_its_writer_out(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(locks.os, "write", lambda fd, data: write(fd, data[:20]))
    with pytest.raises(UserError, match="No space left"), locks.file_lock(tmp_path / "l", "it"):
        pass
    monkeypatch.undo()
    with locks.file_lock(tmp_path / "l", "it"):
        pass


def test_a_lock_that_is_refused_to_all_is_not_let_go_of(tmp_path, monkeypatch):
    def refused(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(locks.fcntl, "flock", refused)
    with locks.lock_profile(tmp_path):
        pass
    assert (tmp_path / ".lock").exists()  # whoever holds it needs it


# Damage

DAMAGE = {"empty": b"", "garbage": os.urandom(300), "cut": None, "list": b"[1, 2]", "other": b"{}"}


@pytest.fixture(scope="module")
def trained_outputs(tmp_path_factory):
    """`outputs/` of a profile whose every method is trained."""
    folder = make_home(tmp_path_factory.mktemp("trained"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTAD_HOME", str(folder))
        assert cli.main(["train", "tiny", "-j", "1"]) == 0
    return folder / "outputs"


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["metrics.parquet", "provenance.json"])
def test_a_damaged_result_is_one_line_and_deleting_it_mends(
    home, trained_outputs, capsys, name, damage
):
    shutil.copytree(trained_outputs, home / "outputs")
    whole = store.read("tiny")
    path = home / "outputs/tiny/gaussian/softad" / name
    old = path.read_bytes()
    path.write_bytes(DAMAGE[damage] if DAMAGE[damage] is not None else old[: len(old) * 2 // 3])
    before = tree(home)
    for verb in ("train", "run", "report")[: 2 if name == "metrics.parquet" else 3]:
        capsys.readouterr()
        assert cli.main([verb, "tiny", *(["-j", "1"] if verb != "report" else [])]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert str(path) in line
        assert "delete" in line
        assert tree(home) == before
    with pytest.raises(UserError, match="broken"):
        store.read("tiny")
    for file in path.parent.iterdir():
        file.unlink()
    assert cli.main(["train", "tiny", "-j", "1"]) == 0
    pd.testing.assert_frame_equal(store.read("tiny"), whole)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_drawing_is_named_by_the_report_and_drawn_again(home, capsys, damage):
    write_notebook(home / "notebooks" / "drawing.ipynb", "print(1)")
    (task,) = (t for t in plans.drawings("tiny", ["gaussian"]) if t.name == "drawing")
    _workspace.write(task.target, DAMAGE[damage] or b"")
    assert cli.main(["report", "tiny"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{task.target} is broken" in line
    assert "drawing" in [t.name for t in plans.plan(prepare(Selection("tiny"))).drawings]


@pytest.mark.parametrize("damage", ["empty", "garbage", "cut"])
def test_damaged_parts_and_progress_mend_themselves(damage):
    made = protocol()
    whole = study.run(protocol(profile="whole"), "softad")
    runs = made.runs("softad")
    train_task.train_runs(made, runs[:2], {4}, lambda n: None, keep_rows(made))
    (part,) = (place(made).path / "parts").iterdir()
    content = part.read_bytes()
    part.write_bytes(DAMAGE[damage] if damage != "cut" else content[: len(content) // 2])
    place(made).progress.write_bytes(DAMAGE[damage] or b"")
    pd.testing.assert_frame_equal(study.run(made, "softad"), whole)
    assert sorted(p.name for p in place(made).path.iterdir()) == [
        "metrics.parquet",
        "provenance.json",
        "selected.parquet",
    ]


def test_one_flipped_bit_is_never_other_numbers():
    made = protocol()
    whole = study.run(made, "softad")
    path = place(made).metrics
    content = path.read_bytes()
    said = 0
    for at in range(4, len(content), 211):
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        try:
            rows = place(made).stored_rows()
        except UserError:
            said += 1
            continue
        assert rows.empty or rows.equals(whole), "empty: another fingerprint's, set aside"
    assert said > 10


def test_a_table_whose_provenance_is_of_before_is_not_done(monkeypatch):
    """Killed between the two, when a result was extended."""
    study.run(protocol(), "softad")
    original = _workspace.write

    def cut(path, content):
        if path.name == "provenance.json":
            raise Accident
        original(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(places, "write", cut)
        with pytest.raises(Accident):
            study.run(protocol(trials=3), "softad")
    assert not study.Study(protocol(trials=3), "softad").done()
    study.run(protocol(trials=3), "softad")
    facts = read_provenance(place(protocol()).provenance)
    assert facts["runs"] == 6
    assert facts["protocol"]["trials"] == 3
    assert facts["rows"] == len(store.read("tiny"))


@pytest.mark.parametrize("dropped", range(2))
def test_killed_while_parts_are_dropped_the_next_call_drops_the_rest(home, monkeypatch, dropped):
    """The table and its provenance are whole by then: nothing is trained again."""
    made, unlink, left = protocol(), Path.unlink, itertools.count()

    def cut(path, missing_ok=False):
        if path.parent.name == "parts" and path.suffix == ".parquet" and next(left) == dropped:
            raise Accident
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", cut)
        with pytest.raises(Accident):
            study.run(made, "softad")
    facts = place(made).provenance.read_bytes()
    assert list(place(made).path.glob("parts/*.parquet"))
    study.run(made, "softad")
    names = ["metrics.parquet", "provenance.json", "selected.parquet"]
    assert sorted(tree(place(made).path)) == names
    assert place(made).provenance.read_bytes() == facts


# The sessions of calls that were stopped


@pytest.mark.parametrize("epochs", range(9, 6 * 8, 5))
def test_every_run_is_in_the_session_of_the_call_that_trained_it(epochs):
    """Four runs and two replays of eight epochs, stored one by one."""
    made = protocol(epochs=8, checkpoint_every=1)
    stopped(made, epochs)
    (path,) = place(made).path.glob("parts/*.json")
    first = json.loads(path.read_text())
    assert (first["runs_trained"], first["runs_replayed"]) == ended_after(epochs - 1, 8, 4)
    assert first["stopped"]
    assert not {"gflops", "runs_per_minute"} & set(first)
    study.run(made, "softad")
    before, after = read_provenance(place(made).provenance)["sessions"]
    assert before == first
    assert before["runs_trained"] + after["runs_trained"] == 4
    assert before["runs_replayed"] + after["runs_replayed"] == 2
    assert "stopped" not in after
    assert "gflops" in after
    assert not list(place(made).path.glob("parts"))
    assert study.Study(made, "softad").done()


def ended_after(epochs, per_run, first_pass):
    """(runs, replays) that have ended after so many epochs."""
    ended = epochs // per_run
    return min(ended, first_pass), max(ended - first_pass, 0)


def test_a_call_that_trained_no_run_leaves_no_session():
    made = protocol(epochs=8, checkpoint_every=1)
    stopped(made, 5)
    assert not list(place(made).path.glob("parts/*.json"))
    study.run(made, "softad")
    assert trained(made) == [4]
    study.run(made, "softad", losses=True)
    assert trained(made) == [4], "and one that had nothing to do leaves none"


def test_a_call_that_is_killed_leaves_its_session_as_it_was_when_a_task_ended(monkeypatch):
    """Six tasks: four runs, two replays. What a kill after the n-th finds is what n tasks have done."""
    monkeypatch.setattr(study, "SESSION_INTERVAL", 0.0)
    made, states = protocol(stack=1), []

    def look(rows):
        files = place(made).path.glob("parts/*.json")
        states.append([json.loads(path.read_text()) for path in files])

    study.run(made, "softad", on_rows=look)
    counts = [[(s["runs_trained"], s["runs_replayed"]) for s in sessions] for sessions in states]
    assert counts == [[], [(1, 0)], [(2, 0)], [(3, 0)], [(4, 0)], [(4, 1)]]
    (session,) = read_provenance(place(made).provenance)["sessions"]
    assert (session["runs_trained"], session["runs_replayed"]) == (4, 2)
    assert "stopped" not in session


def test_a_full_disk_is_reported_and_not_that_the_session_could_not_be_stored(monkeypatch):
    made = protocol(stack=1)
    write = _workspace.write

    def full(path, content):
        if len(list(place(made).path.glob("parts/*.parquet"))) == 2:
            raise UserError(f"{path.name}: no space left")
        write(path, content)

    monkeypatch.setattr(places, "write", full)
    with pytest.raises(UserError, match=r"parquet: no space left"):
        study.run(made, "softad")


# An edited protocol


def test_of_two_protocols_in_turn_neither_uses_nor_destroys_the_others(home):
    """The first cut in the middle, the second finished, then the first again."""
    first, second = protocol(checkpoint_every=1, epochs=8), protocol(epochs=8, lr=0.2)
    stopped(first, 8 + 6)
    left = {p.name: p.read_bytes() for p in place(first).path.glob("*/*")}
    assert {Path(n).suffix for n in left} == {".parquet", ".pt", ".json"}
    rows = study.run(second, "softad")
    assert {p.name: p.read_bytes() for p in place(first).path.glob("*/*")} == left
    result = place(second).metrics.read_bytes()
    again = study.run(first, "softad")
    pd.testing.assert_frame_equal(again, study.run(protocol(epochs=8, profile="whole"), "softad"))
    assert trained(first) == [1, 3], "one was there"
    (aside,) = home.glob("outputs/tiny/gaussian/softad.*")
    assert (aside / "metrics.parquet").read_bytes() == result
    assert not again.equals(rows)


def test_a_smaller_study_that_is_interrupted_again_sets_nothing_aside_twice(home):
    large, small = protocol(trials=3), protocol(trials=2)
    train_task.train_runs(large, large.runs("softad")[-2:], {4}, lambda n: None, keep_rows(large))
    for _ in range(3):
        stopped(small, 2)
    assert len(list(home.glob("outputs/tiny/gaussian/softad.*"))) == 1
    pd.testing.assert_frame_equal(
        study.run(small, "softad"), study.run(protocol(profile="whole"), "softad")
    )
    whole = study.run(protocol(trials=3, profile="larger"), "softad")
    pd.testing.assert_frame_equal(study.run(large, "softad"), whole)
    assert trained(large)[-1] == 0, "the third trial's runs were set aside"


@contextlib.contextmanager
def accident_after(moment, *calls):
    """Raise and suppress an `Accident` in the first of the calls (object, name) after `moment` of them."""
    count = 0

    def counted(function):
        def call(*args, **kwargs):
            nonlocal count
            count += 1
            if count > moment:
                raise Accident
            return function(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Accident):
        for where, name in calls:
            patch.setattr(where, name, counted(getattr(where, name)))
        yield


@pytest.mark.parametrize("moment", range(6))
def test_killed_while_a_result_is_set_aside_nothing_is_lost(home, moment):
    study.run(protocol(curves="none"), "softad")
    before = place(protocol()).metrics.read_bytes()
    smaller = protocol(grids={"softad": [0.05]}, curves="none")
    with accident_after(moment, (shutil, "copy2"), (os, "replace"), (Path, "mkdir")):
        study.run(smaller, "softad")
    rows = study.run(smaller, "softad")
    assert rows["knob"].unique().tolist() == [0.05]
    asides = list(home.glob("outputs/tiny/gaussian/softad.*"))
    assert before in [(p / "metrics.parquet").read_bytes() for p in asides]
    assert sum(trained(smaller)) in (0, 4), "what was there is not trained again"
    assert not list(home.glob("outputs/tiny/gaussian/.*.next"))


def test_results_set_aside_are_taken_back_in_place_of_being_trained_again(home):
    first, second = protocol(), protocol(epochs=3)
    rows = study.run(first, "softad")
    before = place(first).metrics.read_bytes()
    study.run(second, "softad")
    assert place(first).can_take_back()
    pd.testing.assert_frame_equal(study.run(first, "softad"), rows)
    assert place(first).metrics.read_bytes() == before
    assert sum(trained(first)) == 4, "by the first call alone"
    assert not place(first).can_take_back()
    assert place(second).can_take_back()
    (aside,) = home.glob("outputs/tiny/gaussian/softad.*")
    assert aside == place(second).earlier


@pytest.mark.parametrize("moment", range(9))
def test_killed_while_results_are_taken_back_nothing_is_lost(home, moment):
    first, second = protocol(curves="none"), protocol(curves="none", epochs=3)
    for each in (first, second):
        study.run(each, "softad")
    calls = (shutil, "copy2"), (os, "replace"), (Path, "mkdir"), (shutil, "rmtree")
    with accident_after(moment, *calls):
        study.run(first, "softad")
    for each in (first, second):
        study.run(each, "softad")
        assert sum(trained(each)) == 4, "it is not trained again"
    assert not list(home.glob("outputs/tiny/gaussian/.*.next"))


# Clocks


def test_a_clock_that_goes_back_changes_nothing(monkeypatch):
    whole = study.run(protocol(profile="whole"), "softad")
    now = [2e9]

    def back():
        now[0] -= 1000
        return now[0]

    class Past(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(back(), tz)

    monkeypatch.setattr(time, "time", back)
    monkeypatch.setattr(datetime, "datetime", Past)
    made = protocol()
    train_task.train_runs(made, made.runs("softad")[:2], {4}, lambda n: None, keep_rows(made))
    os.utime(next((place(made).path / "parts").iterdir()), (4e9, 4e9))
    study.run(made, "softad")
    more = study.run(protocol(trials=3), "softad")
    few = more[more["trial"] < 2].reset_index(drop=True)
    pd.testing.assert_frame_equal(few, whole)
    sessions = read_provenance(place(made).provenance)["sessions"]
    assert sessions[0]["finished"] > sessions[1]["finished"], "the clock went back"
    assert all(s["seconds"] >= 0 for s in sessions)
    assert len(store.provenances("tiny")) == 1


# Names and contents from elsewhere


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/b", "..", ".hidden", "", "a\\b", "a\0b"])
def test_results_stay_inside_outputs(home, name):
    before = tree(home)
    with pytest.raises(UserError):
        profile_dir(name)
    with pytest.raises(UserError) as caught:
        _ = ResultFolder("tiny", name, "softad", "f").path
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError):
        study.run(protocol(folder=str(home), dataset=name), "softad")
    with pytest.raises(UserError, match="profile must be a plain folder name"):
        protocol(profile=name)
    assert tree(home) == before


@pytest.mark.parametrize("link", ["tiny", "tiny/gaussian", "tiny/gaussian/erm"])
def test_a_link_that_leads_out_is_refused(home, tmp_path_factory, capsys, link):
    outside = tmp_path_factory.mktemp("elsewhere")
    path = home / "outputs" / link
    path.parent.mkdir(parents=True)
    path.symlink_to(outside)
    for verb in ("train", "run"):
        assert cli.main([verb, "tiny", "-j", "1"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{path} leads out of {home}/outputs, to {outside}" in line or "leads out" in line
    assert list(outside.iterdir()) == []


def test_outputs_itself_may_be_a_link_to_a_larger_disk(home, tmp_path_factory):
    outside = tmp_path_factory.mktemp("large")
    (home / "outputs").symlink_to(outside)
    assert cli.main(["train", "tiny", "-j", "1", "--method", "erm"]) == 0
    assert (outside / "tiny/gaussian/erm/metrics.parquet").exists()


@pytest.mark.parametrize(
    "text", ['!!python/object/apply:os.system ["touch evil"]', "$(touch evil)"]
)
def test_parameters_are_values_and_nothing_else(home, capsys, monkeypatch, text):
    monkeypatch.chdir(home)
    assert cli.main(["train", "tiny", "-p", "lr", text]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    (home / "params/tiny/gaussian.yaml").write_text(f"lr: {text}\n")
    assert cli.main(["train", "tiny"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (home / "evil").exists()


def test_nothing_in_the_library_can_run_what_it_reads():
    """Of every module: no shell, no eval, no pickle of our own, YAML and checkpoints the safe way."""
    never = r"shell=True|os\.system|os\.popen|\bpickle\b|\bshelve\b|\bmarshal\b|(?<![\w.])(?:eval|exec)\("
    never += r"|yaml\.(?:load|unsafe|full)"
    for path in sorted(Path(softadlib.__file__).parent.rglob("*.py")):
        code = "\n".join(line.split("#")[0] for line in path.read_text().splitlines())
        assert not re.findall(never, code), path
        for call in re.findall(r"torch\.load\([^)]*\)[^)]*\)?", code):
            assert "weights_only=True" in call, path
        assert "allow_pickle=True" not in code, path
