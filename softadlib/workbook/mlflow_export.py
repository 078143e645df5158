"""Finished results → an MLflow store, in one pass that can be repeated.

experiment <profile>/<dataset>  a run a method, with its executed notebook and provenance, and below
                                it a run a training: parameters, metrics by epoch, selected or not
experiment <profile>            one run: the report, the figures as notebooks and pictures

What is there already is left alone. A training whose numbers or parameters changed is logged anew
and its old run marked as deleted, as is one that `outputs/` holds no more: `mlflow runs restore`
brings it back, `mlflow gc` does away with it.
"""

import datetime
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from softadlib import _workspace
from softadlib._validation import UserError
from softadlib.analysis import tables
from softadlib.methods import METHODS
from softadlib.results import reader as store
from softadlib.results import selection
from softadlib.results.folder import profile_dir, read_provenance
from softadlib.results.schema import MEASURES, RUN_KEY
from softadlib.results.table import load as load_rows
from softadlib.training.protocol import RUNTIME_FIELDS, SELECTION_FIELDS
from softadlib.workbook import report
from softadlib.workbook.mlflow_store import Ledger


@dataclass
class Sent:
    """What an export did: trainings logged, found as they are, runs marked as deleted; where to."""

    uri: str
    logged: int = 0
    found: int = 0
    withdrawn: int = 0


def default_uri() -> str:
    """$MLFLOW_TRACKING_URI, or a database file of our own in `outputs/`."""
    return (
        os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{_workspace.home()}/outputs/mlflow.db"
    )


def export(profile: str, uri: str | None = None, tick: Callable[[int], Any] | None = None) -> Sent:
    """Send what is finished of a profile and say what was done. Raises UserError.

    `uri`: sqlite:///FILE or another database, http(s)://HOST:PORT of a server; None is
    `default_uri()`. `tick` is told of every training looked at. One export of a profile at a time.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault(
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"
    )  # of five, minutes for a wrong URI
    places = store.places(profile)
    if not places:
        raise UserError(
            f"nothing finished under {profile_dir(profile)}; first: softad run {profile}"
        )
    sent = Sent(uri or default_uri())
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
        from sqlalchemy.exc import SQLAlchemyError
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error.name} is not installed; install what MLflow needs with: pip install 'softadlib[mlflow]'"
        ) from None
    try:
        if sent.uri.startswith("sqlite:///"):
            Path(sent.uri.removeprefix("sqlite:///")).absolute().parent.mkdir(
                parents=True, exist_ok=True
            )
        client = MlflowClient(tracking_uri=sent.uri)
        for dataset in dict.fromkeys(place.parent.name for place in places):
            ledger = Ledger(client, sent.uri, f"{profile}/{dataset}")
            for place in places:
                if place.parent.name == dataset:
                    _method(ledger, place, sent, tick or (lambda n: None))
        _report(Ledger(client, sent.uri, profile), profile, sent)
    except (MlflowException, SQLAlchemyError, OSError) as error:
        words = " ".join(str(error).split())[:300]
        raise UserError(f"MLflow at {sent.uri}: {words}") from None
    return sent


def _method(ledger: Ledger, place: Path, sent: Sent, tick: Callable[[int], Any]) -> None:
    """One result folder: a run of its own, and one of each training below it."""
    facts = read_provenance(place / "provenance.json")
    protocol, method, last = facts["protocol"], facts["method"], facts["sessions"][-1]
    rows = load_rows({place / "metrics.parquet": protocol["label_noise"][0]})
    end = int(datetime.datetime.fromisoformat(last["finished"]).timestamp() * 1000)
    times = (end - int(1000 * last["seconds"]), end)
    skip = {*SELECTION_FIELDS, *RUNTIME_FIELDS}
    params = {"dataset": facts["dataset"], "method": method}
    params |= {k: v for k, v in protocol.items() if k not in skip}
    origin = {k: last.get(k) for k in ("device", "torch", "python", "softadlib", "commit")}
    origin |= {"method": method, "fingerprint": facts["fingerprint"]}

    same = ledger.of(kind="method", method=method, fingerprint=facts["fingerprint"])
    parent = same[0].info.run_id if same else None
    if parent is None:
        parent = ledger.begin(method, times, params, origin | {"kind": "method"})
    there = {
        run.data.tags["softad.digest"]: run
        for run in ledger.of(kind="training", method=method, fingerprint=facts["fingerprint"])
        if run.info.status == "FINISHED"
    }
    chosen = selection.select(rows, protocol["ties"])
    chosen = {_setting(*key) for key in chosen[RUN_KEY].itertuples(index=False)}
    wanted = {parent}
    for key, part in rows.groupby(RUN_KEY, dropna=False):
        setting = _setting(*key)
        given = params | _parameters(facts, *setting)
        values = part[["epoch", *MEASURES]].to_numpy(float)
        digest = _digest(json.dumps(given, sort_keys=True).encode(), values.tobytes())
        selected = str(setting in chosen)
        run = there.get(digest)
        if run is None:
            diverged = not all(map(math.isfinite, values[-1]))
            marks = {"kind": "training", "digest": digest, "selected": selected}
            name = f"{method} {_words(facts, *setting)}"
            told = ((m, v, int(line[0])) for line in values for m, v in zip(MEASURES, line[1:]))
            tags = origin | marks | {"diverged": diverged}
            made = ledger.begin(name, times, given, tags, told, parent)
            ledger.end(made, end)
            sent.logged += 1
        else:
            wanted.add(run.info.run_id)
            if run.data.tags.get("softad.selected") != selected:
                ledger.update(run.info.run_id, end, {"selected": selected}, {})
            sent.found += 1
        tick(1)
    old = [r for r in ledger.of(method=method) if r.info.run_id not in wanted]
    sent.withdrawn += ledger.withdraw(old)
    _finish_method(ledger, place, parent, facts, rows, end)


def _setting(noise: float, trial: int, knob: float) -> tuple[float, int, float | None]:
    return (float(noise), int(trial), None if math.isnan(knob) else float(knob))


def _parameters(facts: dict, noise: float, trial: int, knob: float | None) -> dict[str, Any]:
    """What is a training's own: its knob by its own name too, and its seed."""
    own = {"label_noise": noise, "trial": trial, "seed": facts["seeds"][trial]}
    if knob is not None:
        own |= {"knob": knob, str(METHODS[facts["method"]].knob): knob}
    return own


def _words(facts: dict, noise: float, trial: int, knob: float | None) -> str:
    """theta 0.1 trial 3, as the run is called; label noise where it varies."""
    words = [] if knob is None else [f"{METHODS[facts['method']].knob} {knob:g}"]
    words += [f"noise {noise:g}"] if len(facts["protocol"]["label_noise"]) > 1 else []
    return " ".join([*words, f"trial {trial}"])


def _finish_method(
    ledger: Ledger, place: Path, run: str, facts: dict, rows: pd.DataFrame, end: int
) -> None:
    """The method's files, its means over the selected runs, and what the sweep was."""
    files = [place / n for n in ("provenance.json", "metrics.parquet", "train.ipynb")]
    files = [path for path in files if path.exists()]
    digest = _digest(*(path.read_bytes() for path in files))
    known = ledger.of(digest=digest, kind="method")
    if any(r.info.run_id == run and r.info.status == "FINISHED" for r in known):
        return
    protocol = facts["protocol"]
    means: dict[str, float] = {}
    for line in tables.summary(rows, protocol["ties"]).to_dict("records"):
        noise = f"-noise-{line['label_noise']:g}" if len(protocol["label_noise"]) > 1 else ""
        means |= {f"{k}{noise}": line[k] for k in ("gap", *tables.MEANS, "knob", "n")}
    tags = {k: protocol[k] for k in ("trials", "ties", "label_noise")}
    tags |= {"grid": protocol["grids"].get(facts["method"]), "runs": facts["runs"]}
    tags |= {"seconds": round(sum(s["seconds"] for s in facts["sessions"]), 1), "digest": digest}
    for path in files:
        ledger.client.log_artifact(run, str(path))
    ledger.update(run, end, tags, {k: v for k, v in means.items() if not math.isnan(v)})
    ledger.end(run, end)


def _report(ledger: Ledger, profile: str, sent: Sent) -> None:
    """The report and the executed figure notebooks with their pictures, in one run."""
    folder = profile_dir(profile)
    notebooks = sorted((folder / "figures").glob("*.ipynb"))
    files = [p for p in notebooks if not p.name.endswith(".error.ipynb")]
    files += [folder / "index.html"] if (folder / "index.html").exists() else []
    digest = _digest(*(path.name.encode() + path.read_bytes() for path in files))
    there = ledger.of(kind="report", digest=digest)
    done = [r.info.run_id for r in there if r.info.status == "FINISHED"][:1]
    if files and not done:
        now = int(max(path.stat().st_mtime for path in files) * 1000)
        tags = {"kind": "report", "digest": digest}
        run = ledger.begin("report", (now, now), {"profile": profile}, tags)
        with tempfile.TemporaryDirectory() as away:
            for path in files:
                target = Path(away) / path.relative_to(folder)
                target.parent.mkdir(exist_ok=True)
                shutil.copy(path, target)
                for name, picture in report.pictures(path):
                    target.with_name(name).write_bytes(picture)
            ledger.client.log_artifacts(run, away)
        ledger.end(run, now)
    old = [r for r in ledger.of(kind="report") if r.info.run_id not in done]
    sent.withdrawn += ledger.withdraw(old)


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(p).digest() for p in parts)).hexdigest()[:16]
