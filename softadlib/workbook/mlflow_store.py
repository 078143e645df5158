"""One experiment of an MLflow store: which runs are there, and what is added, changed, withdrawn."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from softadlib._validation import UserError

BATCH = 900
"""Metric values a call: MLflow takes 1000 entries, and the first call has the parameters too."""


class Ledger:
    """The runs of one experiment, found by tags `softad.*`; the experiment is made where there is none."""

    def __init__(self, client: Any, uri: str, name: str):
        self.client = client
        found = client.get_experiment_by_name(name)
        if found is not None and found.lifecycle_stage == "deleted":
            raise UserError(
                f"experiment {name!r} was deleted from {uri}; bring it back with: "
                f"mlflow experiments restore --experiment-id {found.experiment_id}"
            )
        if found is None:
            where = _beside(uri, name)
            self.id = client.create_experiment(name, **where)
        else:
            self.id = found.experiment_id
        self.runs, token = [], None
        while token != "":
            page = client.search_runs([self.id], max_results=5000, page_token=token)
            self.runs += page
            token = page.token or ""

    def of(self, **tags: str) -> list[Any]:
        """The runs that carry all of these tags, `softad.` before each name."""
        wanted = _named(tags).items()
        return [r for r in self.runs if wanted <= r.data.tags.items()]

    def begin(
        self,
        name: str,
        times: tuple[int, int],
        params: Mapping[str, Any],
        tags: Mapping[str, Any],
        metrics: Iterable[tuple[str, float, int]] = (),
        parent: str | None = None,
    ) -> str:
        """Log a run and return its id; it counts as unfinished until `end`.

        `times`: milliseconds since 1970 of its start and end; `metrics`: name, value, epoch.
        """
        from mlflow.entities import Metric, Param

        tags = _named(tags) | ({"mlflow.parentRunId": parent} if parent else {})
        run = self.client.create_run(self.id, times[0], tags, name).info.run_id
        given = [Param(k, str(v)) for k, v in params.items()]
        values = [Metric(k, v, times[1], epoch) for k, v, epoch in metrics]
        for i in range(0, max(len(values), 1), BATCH):
            self.client.log_batch(run, values[i : i + BATCH], () if i else given)
        return run

    def update(
        self, run: str, end: int, tags: Mapping[str, Any], metrics: Mapping[str, float]
    ) -> None:
        """Change the tags of a run, and add those metrics that are new or have another value."""
        from mlflow.entities import Metric, RunTag

        old = self.client.get_run(run).data.metrics
        fresh = [Metric(k, v, end, 0) for k, v in metrics.items() if old.get(k) != v]
        self.client.log_batch(run, fresh, (), [RunTag(k, v) for k, v in _named(tags).items()])

    def end(self, run: str, at: int) -> None:
        """Mark a run as finished: only now is it whole."""
        self.client.set_terminated(run, "FINISHED", at)

    def withdraw(self, runs: Iterable[Any]) -> int:
        """Mark runs as deleted, which MLflow can undo; returns how many."""
        return sum(self.client.delete_run(run.info.run_id) is None for run in runs)


def _named(tags: Mapping[str, Any]) -> dict[str, str]:
    return {f"softad.{k}": str(v) for k, v in tags.items() if v is not None}


def _beside(uri: str, name: str) -> dict[str, str]:
    """A server knows where its files go; those of a database file go beside it, not into the cwd."""
    if not uri.startswith("sqlite:///"):
        return {}
    folder = Path(uri.removeprefix("sqlite:///")).absolute().parent / "mlartifacts" / name
    return {"artifact_location": folder.as_uri()}
