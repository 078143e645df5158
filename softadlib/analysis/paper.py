"""The paper's four printed tables, its datasets in their order, and the commands that fill our cells beside them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.resources import files

import pandas as pd

from softadlib.methods import METHODS, PAPER

DATASETS = ("gaussian", "sinusoid", "spiral", "cifar10", "cifar100", "fashionmnist", "svhn")
"""The paper's datasets, in the order of its tables."""
COMPARED = ("erm", "flooding", "sam", "softad")
"""The methods of the paper's Table 1."""


def printed(*tables: int) -> pd.DataFrame:
    """Return mean and std (NaN where not printed) of these tables, indexed by (dataset, method).

    A later table adds the cells that earlier ones lack.
    """
    with files("softadlib.analysis").joinpath("paper_tables.csv").open() as file:
        rows = pd.read_csv(file)
    parts = [
        rows[rows["table"] == table].set_index(["dataset", "method"])[["mean", "std"]]
        for table in tables
    ]
    combined = parts[0]
    for part in parts[1:]:
        combined = combined.combine_first(part)
    return combined


def in_order(datasets: Iterable[str]) -> list[str]:
    """Return the given datasets without repeats: the paper's in its order, then all others by name."""
    names = set(datasets)
    return [d for d in DATASETS if d in names] + sorted(names - set(DATASETS))


def datasets_in(rows: pd.DataFrame, table: int) -> list[str]:
    """Return the datasets of a table of the paper, then those that only `rows` has."""
    return in_order([*(dataset for dataset, _ in printed(table).index), *rows["dataset"].unique()])


def methods_in(rows: pd.DataFrame) -> list[str]:
    """Return the methods of the paper, then those that only `rows` has."""
    methods = set(rows["method"].unique())
    return [*PAPER, *(m for m in METHODS if m not in PAPER and m in methods)]


def missing_commands(
    rows: pd.DataFrame,
    profile: str,
    datasets: Sequence[str],
    methods: Sequence[str],
    offered: Mapping[str, Collection[str]] | None = None,
    not_fetched: Collection[str] = (),
) -> list[str]:
    """Return the commands that train what the table lacks, one per dataset.

    `offered`: the methods that the profile trains, by dataset; profile `paper` trains other datasets.
    `not_fetched`: datasets to download first.
    """
    stored = set(rows[["dataset", "method"]].drop_duplicates().itertuples(index=False, name=None))
    commands = []
    for dataset in datasets:
        lacking = [m for m in methods if (dataset, m) not in stored]
        if offered and dataset in offered:
            lacking = [m for m in lacking if m in offered[dataset]]
        if not lacking:
            continue
        fetch = f"softad data prepare {dataset} && " if dataset in not_fetched else ""
        trained_by = profile if offered is None or dataset in offered else "paper"
        chosen = [] if len(lacking) == len(methods) else [f" --method {m}" for m in lacking]
        commands.append(f"{fetch}softad run {trained_by} --dataset {dataset}{''.join(chosen)}")
    return commands
