"""What a command says while it trains: the share that is done, and the time that is left."""

import types

import pytest

from softadlib.workbook.notebooks import progress_bar
from softadlib.workbook.train import skip_stored


@pytest.fixture
def clock(monkeypatch):
    now = types.SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now.seconds)
    return now


def test_stored_work_counts_as_done_and_not_as_speed(clock, capsys):
    """Of 200 units 100 are stored, those of the second training: 50 in 10 s leave 50 for 10 s."""
    tasks = [("first", 100, None), ("second", 100, None)]
    with progress_bar.ProgressBar(tasks, "trainings", stored=100) as bar:
        first, second = skip_stored(0, bar.advance), skip_stored(100, bar.advance)
        first(50)
        clock.seconds = 10
        bar.finished("first", 10)
        line = "softad: first took 10 s (1 of 2 trainings, 75% trained, about 10 s left)\n"
        assert capsys.readouterr().err == line
        first(50)
        second(100)
        clock.seconds = 20
        bar.finished("second", None)
    assert "second was trained already (2 of 2 trainings, 100% trained)" in capsys.readouterr().err


def test_units_of_earlier_calls_may_come_in_parts():
    heard = []
    report = skip_stored(30, heard.append)
    for units in (10, 25, 5):
        report(units)
    assert heard == [0, 5, 5]
