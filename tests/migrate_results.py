"""Migrate results of version 0.1.0 to one file a study: `python tests/migrate_results.py OUTPUTS PROFILE …`.

Each outputs/<profile>/<dataset>/<method>/metrics.parquet with its provenance.json and selected.parquet
becomes <fingerprint>.parquet and <fingerprint>-losses.parquet in the same folder. The rows are
compared to the last bit, then the old files are deleted. Run once; it goes with the next commit.
"""

import json
import sys
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from softadlib.results.schema import ALL_COLUMNS, DTYPES, LOSS_COLUMNS
from softadlib.results.store import Facts, StudyStore, merge, merge_losses
from softadlib.training.protocol import Protocol

SETTINGS = {
    "sigma": ("softad",), "scale": ("softad",), "bn_update": ("sam", "asam", "gnp", "fdgr"),
    "variant": ("asam",), "eta": ("asam",), "radius": ("gnp",), "mixing": ("gnp",),
    "step_size": ("fdgr",), "scheme": ("fdgr",), "aux": ("adaflood",), "aux_folds": ("adaflood",),
}  # fmt: skip
"""Settings that were fields of the oldest protocols, and their methods."""


def current(values: dict) -> dict:
    """The fields of a stored protocol as they are today."""
    settings = {method: dict(v) for method, v in values.get("settings", {}).items()}
    for name, methods in SETTINGS.items():
        for method in methods if name in values else ():
            settings.setdefault(method, {})[name] = values[name]
    if "adaflood" in settings and settings["adaflood"].pop("aux", "folds") != "folds":
        raise ValueError("adaflood by the last layer is no longer there")
    fields = {k: v for k, v in values.items() if k not in SETTINGS and k != "stack"}
    # In place of a grid that took theta from an ordinary run, the constant that did as well.
    grids = {m: [0.01] if isinstance(g, str) else g for m, g in fields["grids"].items()}
    return {**fields, "settings": settings, "grids": grids}


def migrate(folder: Path) -> StudyStore:
    old = json.loads((folder / "provenance.json").read_text())
    old_rows = pq.ParquetFile(folder / "metrics.parquet").read().to_pandas(ignore_metadata=True)
    if "label_noise" not in old_rows:
        old_rows["label_noise"] = old["protocol"]["label_noise"][0]
    protocol = Protocol.from_dict(current(old["protocol"]))
    method = old["method"]
    profile = folder.parts[-3]
    protocol = protocol.replace(profile=profile)
    store = StudyStore(profile, old["dataset"], method, protocol.fingerprint(method))
    sessions = []
    for i, session in enumerate(old["sessions"]):
        facts = {"runs_trained": 0, **session}
        facts["id"] = f"{old['fingerprint'][:12]}{i:04d}"
        sessions.append(facts)
    facts = Facts.model_validate(
        {
            "profile": profile, "dataset": old["dataset"], "method": method,
            "fingerprint": store.fingerprint, "protocol": protocol.to_dict(), "seeds": old["seeds"],
            "sessions": sessions,
        }
    )  # fmt: skip
    rows = merge([old_rows[ALL_COLUMNS].astype(DTYPES)])
    assert len(rows) == len(old_rows)
    selected = folder / "selected.parquet"
    losses = merge_losses([])
    if selected.exists():
        old_losses = pq.ParquetFile(selected).read().to_pandas(ignore_metadata=True)
        losses = merge_losses([old_losses[LOSS_COLUMNS]])
        assert len(losses) == len(old_losses)
    assert list(protocol.seeds) == old["seeds"], folder
    taken = merge([])
    if isinstance(old["protocol"]["grids"].get(method), str):
        same = StudyStore("paper", old["dataset"], method, store.fingerprint)
        taken = same.rows()
        taken = taken[(taken["knob"] == 0.01) & (taken["epoch"] == protocol.epochs)]
        facts = facts.model_copy(update={"sessions": [*facts.sessions, *same.facts().sessions]})
        assert taken["trial"].nunique() == protocol.trials
        at_the_constant = rows.loc[rows["knob"] == 0.01, "trial"]
        taken = taken[~taken["trial"].isin(at_the_constant)]
        rows = merge([taken, rows])
    store.finish(rows, losses, facts)
    again = store.rows()
    if len(taken):
        keys = set(zip(taken["trial"], taken["knob"]))
        new = [pair in keys for pair in zip(again["trial"], again["knob"])]
        pd.testing.assert_frame_equal(again[new].reset_index(drop=True), merge([taken]), check_exact=True)
        again = again[[not is_new for is_new in new]]
    order = ["label_noise", "trial", "knob", "epoch"]
    a = old_rows[ALL_COLUMNS].sort_values(order, ignore_index=True)
    b = again.sort_values(order, ignore_index=True)
    pd.testing.assert_frame_equal(a, b, check_exact=True, check_dtype=False)
    if len(losses):
        key = [*order, "part"]
        a = old_losses[LOSS_COLUMNS].sort_values(key, ignore_index=True)
        b = store.losses().sort_values(key, ignore_index=True)
        plain = [c for c in LOSS_COLUMNS if c != "quantiles"]
        pd.testing.assert_frame_equal(a[plain], b[plain], check_exact=True, check_dtype=False)
        assert all((x == y).all() or (x[x == x] == y[y == y]).all() for x, y in zip(a["quantiles"], b["quantiles"]))
    for name in ("metrics.parquet", "provenance.json", "selected.parquet"):
        (folder / name).unlink(missing_ok=True)
    for path in folder.glob("held-out/*.npz"):
        prefix, rest = path.name.split("-", 1)
        path.rename(path.with_name(f"{store.fingerprint}-{rest}"))
    return store


if __name__ == "__main__":
    root, *profiles = sys.argv[1:]
    for profile in profiles:
        for path in sorted(Path(root).glob(f"{profile}/*/*/provenance.json")):
            store = migrate(path.parent)
            print(store.file.relative_to(root), len(store.rows()), flush=True)
