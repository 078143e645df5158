"""Finished results → an MLflow store, by the fluent API. A method whose digest is there is skipped.

experiment <profile>/<dataset>  one run per method: means, executed notebook, provenance, table; nested
                                in it one run per training: parameters, metrics by epoch, selected or not
experiment <profile>            one run: the report, the figures as notebooks and pictures

Results that changed are logged again beside the earlier ones; tag `softad.digest` tells them apart.
"""

import contextlib
import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from softadlib import _workspace
from softadlib._validation import UserError
from softadlib.analysis import tables
from softadlib.methods import METHODS
from softadlib.results import reader, selection
from softadlib.results.fingerprint import RUNTIME_FIELDS, SELECTION_FIELDS
from softadlib.results.folder import ResultFolder
from softadlib.results.paths import profile_dir
from softadlib.results.provenance import Provenance
from softadlib.results.schema import MEASURES, RUN_KEY, RunKey
from softadlib.results.table import load as load_rows
from softadlib.workbook import report

BATCH = 1000
"""Metric values that MLflow accepts per call."""
ORIGIN = ("device", "torch", "python", "softadlib", "commit")
"""Facts of the last session, a tag each."""


@dataclass
class Sent:
    """Count what an export did: trainings logged, and trainings that the store had already."""

    uri: str
    logged: int = 0
    skipped: int = 0


def default_uri() -> str:
    """Return $MLFLOW_TRACKING_URI, or a database file in `outputs/`."""
    return (
        os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{_workspace.home()}/outputs/mlflow.db"
    )


def export(
    profile: str, uri: str | None = None, progress: Callable[[int], Any] | None = None
) -> Sent:
    """Send the finished results of a profile. Raises UserError.

    `uri`: sqlite:///FILE or another database, http(s)://HOST:PORT of a server; None is
    `default_uri()`. `progress` is called with 1 after each training. Run one export of a profile at
    a time.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # five take minutes
    folders = reader.finished(profile)
    if not folders:
        raise UserError(f"nothing under {profile_dir(profile)}; first: softad run {profile}")
    sent = Sent(uri or default_uri())
    try:
        import mlflow
        from sqlalchemy.exc import SQLAlchemyError
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error.name} is not installed; install what MLflow needs with: pip install 'softadlib[mlflow]'"
        ) from None
    try:
        if sent.uri.startswith("sqlite:///"):
            database = Path(sent.uri.removeprefix("sqlite:///")).absolute()
            database.parent.mkdir(parents=True, exist_ok=True)
        mlflow.set_tracking_uri(sent.uri)
        for folder in folders:
            _use_experiment(sent.uri, f"{profile}/{folder.dataset}")
            _log_method(folder, sent, progress or (lambda count: None))
        _use_experiment(sent.uri, profile)
        _log_report(profile)
    except (mlflow.MlflowException, SQLAlchemyError, OSError) as error:
        words = " ".join(str(error).split())[:300]
        raise UserError(f"MLflow at {sent.uri}: {words}") from None
    return sent


def _use_experiment(uri: str, name: str) -> None:
    """Select an experiment; create it with its files beside the database, not in the cwd."""
    import mlflow

    if mlflow.get_experiment_by_name(name) is None and uri.startswith("sqlite:///"):
        folder = Path(uri.removeprefix("sqlite:///")).absolute().parent / "mlartifacts" / name
        mlflow.create_experiment(name, artifact_location=folder.as_uri())
    mlflow.set_experiment(name)


@contextlib.contextmanager
def _unless_logged(name: str, tags: Mapping[str, Any]) -> Iterator[bool]:
    """Open a run named `name` and yield True; yield False where a finished one has these tags.

    An unfinished one, of an export that was stopped, is marked as deleted with its trainings.
    """
    import mlflow

    tags = {f"softad.{key}": str(value) for key, value in tags.items()}
    wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
    earlier = mlflow.search_runs(filter_string=wanted, output_format="list")
    if any(run.info.status == "FINISHED" for run in earlier):
        yield False
        return
    for run in earlier:
        parent = f"tags.`mlflow.parentRunId` = '{run.info.run_id}'"
        for stale in (run, *mlflow.search_runs(filter_string=parent, output_format="list")):
            mlflow.delete_run(stale.info.run_id)
    with mlflow.start_run(run_name=name, tags=tags):
        yield True


def _log_method(folder: ResultFolder, sent: Sent, progress: Callable[[int], Any]) -> None:
    """Log one result folder: a run of the method, and in it one run per training."""
    import mlflow

    facts = folder.read_provenance()
    protocol, method, files = facts.protocol, facts.method, folder.files()
    rows = load_rows({folder.metrics: protocol["label_noise"][0]})
    trainings = rows.groupby(RUN_KEY, dropna=False)
    digest = _digest(*(path.read_bytes() for path in files))
    tags = {"kind": "method", "method": method, "digest": digest}
    with _unless_logged(method, tags) as new:
        if not new:
            sent.skipped += len(trainings)
            progress(len(trainings))
            return
        params = {"dataset": facts.dataset, "method": method}
        omitted = {*SELECTION_FIELDS, *RUNTIME_FIELDS}
        params |= {name: value for name, value in protocol.items() if name not in omitted}
        mlflow.log_params(params)
        session = facts.sessions[-1].to_json()
        origin = {name: str(session.get(name)) for name in ORIGIN}
        origin |= {"method": method, "fingerprint": facts.fingerprint}
        _tag(origin | {name: protocol[name] for name in ("trials", "ties", "label_noise")})
        chosen = selection.select(rows, protocol["ties"])[RUN_KEY]
        selected = {RunKey.from_values(*key) for key in chosen.itertuples(index=False)}
        for key, part in trainings:
            run_key = RunKey.from_values(*key)
            _log_training(facts, run_key, part, params, origin | {"selected": run_key in selected})
            sent.logged += 1
            progress(1)
        mlflow.log_metrics(_means(rows, protocol))
        for path in files:
            mlflow.log_artifact(str(path))


def _log_training(
    facts: Provenance,
    key: RunKey,
    rows: pd.DataFrame,
    params: Mapping[str, Any],
    tags: Mapping[str, Any],
) -> None:
    """Log one training: the method's parameters and its own, and every measured epoch."""
    import mlflow
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    noise, trial, knob = key
    symbol = str(METHODS[facts.method].knob)
    particular = {"label_noise": noise, "trial": trial, "seed": facts.seeds[trial]}
    words = [facts.method]
    if knob is not None:
        particular |= {"knob": knob, symbol: knob}
        words.append(f"{symbol} {knob:g}")
    if len(facts.protocol["label_noise"]) > 1:
        words.append(f"noise {noise:g}")
    values = rows[["epoch", *MEASURES]].to_numpy(float)
    with mlflow.start_run(run_name=" ".join([*words, f"trial {trial}"]), nested=True) as run:
        mlflow.log_params({**params, **particular})
        diverged = not all(map(math.isfinite, values[-1]))
        _tag({**tags, "kind": "training", "diverged": diverged})
        time = run.info.start_time
        metrics = [
            Metric(measure, value, time, int(line[0]))
            for line in values
            for measure, value in zip(MEASURES, line[1:])
        ]
        for start in range(0, len(metrics), BATCH):
            MlflowClient().log_batch(run.info.run_id, metrics[start : start + BATCH])


def _tag(tags: Mapping[str, Any]) -> None:
    import mlflow

    mlflow.set_tags({f"softad.{key}": str(value) for key, value in tags.items()})


def _means(rows: pd.DataFrame, protocol: Mapping[str, Any]) -> dict[str, float]:
    """Return the method's means over the selected runs, at each label noise."""
    means: dict[str, float] = {}
    for line in tables.summary(rows, protocol["ties"]).to_dict("records"):
        suffix = f"-noise-{line['label_noise']:g}" if len(protocol["label_noise"]) > 1 else ""
        means |= {f"{name}{suffix}": line[name] for name in ("gap", *tables.MEANS, "knob", "n")}
    return {name: value for name, value in means.items() if not math.isnan(value)}


def _log_report(profile: str) -> None:
    """Log the report and the executed figure notebooks with their pictures, in one run."""
    import mlflow

    folder = profile_dir(profile)
    notebooks = sorted((folder / "figures").glob("*.ipynb"))
    files = [path for path in notebooks if not path.name.endswith(".error.ipynb")]
    files += [folder / "index.html"] if (folder / "index.html").exists() else []
    if not files:
        return
    digest = _digest(*(path.name.encode() + path.read_bytes() for path in files))
    with _unless_logged("report", {"kind": "report", "digest": digest}) as new:
        if not new:
            return
        mlflow.log_param("profile", profile)
        with tempfile.TemporaryDirectory() as staging:
            for path in files:
                target = Path(staging) / path.relative_to(folder)
                target.parent.mkdir(exist_ok=True)
                shutil.copy(path, target)
                for name, picture in report.pictures(path):
                    target.with_name(name).write_bytes(picture)
            mlflow.log_artifacts(staging)


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(p).digest() for p in parts)).hexdigest()[:16]
