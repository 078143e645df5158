"""Does the batch size change the picture? A linear classifier over θ, and a network at one θ.

The paper says that on the synthetic sets key trends stay the same with full batches (App. C.1), and
that the linear classifier's trends tend to change with the mini-batch size (App. C.3).
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from softadlib.analysis.plotting.curves import PALETTE
from softadlib.experiments import all_methods, linear
from softadlib.functional import LN2
from softadlib.methods import METHODS

MEASURES = {"loss_test": "test loss (nats)", "acc_test": "test accuracy"}


def linear_by_batch_size(
    batch_sizes: Sequence[int],
    thetas: Sequence[float],
    *,
    seed: int,
    repeats: int,
    epochs: int,
    sizes: linear.Sizes,
) -> pd.DataFrame:
    """Train the linear classifier with Flooding and SoftAD: a row per batch size, method, θ and repeat.

    Every batch size sees the same data, and takes epochs · n / batch_size steps.
    """
    frames = [
        linear.linear_sensitivity(
            method, thetas, seed=seed, repeats=repeats, sizes=sizes, epochs=epochs, batch_size=size
        ).assign(batch_size=size)
        for size in batch_sizes
        for method in ("flooding", "softad")
    ]
    return pd.concat(frames, ignore_index=True)


def last_accurate_theta(rows: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    """Return the largest θ up to which the mean accuracy stays near its maximum over θ.

    Near is within `tolerance` of the maximum. A line per batch size, a column per method.
    """
    means = rows.groupby(["batch_size", "method", "theta"])["acc_test"].mean()
    table = {}
    for case, curve in means.groupby(["batch_size", "method"]):
        by_theta = curve.droplevel(["batch_size", "method"]).sort_index()
        is_near = (by_theta >= by_theta.max() - tolerance).astype(int)
        after_maximum = is_near[by_theta.idxmax() :]
        table[case] = float(after_maximum[after_maximum.cumprod() == 1].index[-1])
    return pd.Series(table).rename_axis(["batch_size", "method"]).unstack("method")


def draw_linear(rows: pd.DataFrame) -> Figure:
    """Draw mean test loss and accuracy over θ, a column per batch size; bands are min to max."""
    batch_sizes = sorted(rows["batch_size"].unique())
    figure, axes = plt.subplots(
        2,
        len(batch_sizes),
        figsize=(3.1 * len(batch_sizes), 4.6),
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for column, size in zip(axes.T, batch_sizes):
        for ax, (measure, label) in zip(column, MEASURES.items()):
            for style, (method, part) in zip(("--", "-"), rows.groupby("method")):
                curves = part[part["batch_size"] == size].groupby("theta")[measure]
                colour, mean = PALETTE[str(method)], curves.mean()
                ax.fill_between(
                    mean.index, curves.min(), curves.max(), color=colour, alpha=0.15, linewidth=0
                )
                ax.plot(mean.index, mean, style, color=colour, label=METHODS[str(method)].label)
            ax.axvline(LN2, color="0.25", linestyle=":", linewidth=1)
            if size == batch_sizes[0]:
                ax.set_ylabel(label)
        column[0].set_title(f"batch size {size}")
        column[1].set_xlabel("θ (nats)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure


def train_by_batch_size(
    profile: str, dataset: str, batch_sizes: Sequence[int], theta: float, trials: int, epochs: int
) -> pd.DataFrame:
    """Train ERM, Flooding and SoftAD at one θ with each batch size; return the last epochs.

    Same data and initial weights for all. Nothing is written.
    """
    grids = {name: [theta] for name in ("flooding", "softad")}
    changes = {"trials": trials, "epochs": epochs, "curves": "none", "device": "cpu"}
    frames = []
    for size in batch_sizes:
        (protocol,) = all_methods.protocols(
            profile, [dataset], grids, batch_size=size, dtype="float64", **changes
        )
        frames.append(all_methods.train_all(protocol).assign(batch_size=size))
    rows = pd.concat(frames, ignore_index=True)
    return rows.assign(gap=rows["loss_test"] - rows["loss_train"])


def across_ln2(rows: pd.DataFrame) -> list[str]:
    """Say how the linear classifier's mean accuracy changes from the last θ below ln 2 to the next."""
    below, above = (
        rows.loc[rows["theta"] < LN2, "theta"].max(),
        rows.loc[rows["theta"] >= LN2, "theta"].min(),
    )
    means = rows.groupby(["method", "batch_size", "theta"])["acc_test"].mean()
    return [
        f"The linear classifier's mean accuracy with {METHODS[str(method)].label}, at θ = {below:.2f} and at "
        f"{above:.2f}, across ln 2: "
        + ", ".join(
            f"{part[method, size, below]:.0%} and {part[method, size, above]:.0%} with batches of {size}"
            for size in part.index.unique("batch_size")
        )
        + "."
        for method, part in means.groupby("method")
    ]


def readings(limits: pd.DataFrame, compared: pd.DataFrame, tolerance: float) -> list[str]:
    """Sum up `last_accurate_theta`, and `tables.differences` from ERM per batch size, in sentences."""
    sentences = []
    for method, values in limits.items():
        words = ", ".join(f"{value:.2f} with batches of {size}" for size, value in values.items())
        sentences.append(
            f"The linear classifier with {METHODS[str(method)].label} stays within "
            f"{100 * tolerance:g} points of its highest accuracy up to θ = {words}."
        )
    ours = compared[compared["method"] == "softad"]
    for measure, words in (("gap", "gap"), ("loss_test", "test loss"), ("model_norm", "norm")):
        below, by_interval = (ours[measure] < 0).sum(), ours[f"{measure} is"]
        smaller, larger = ((by_interval == side).sum() for side in ("smaller", "larger"))
        sentences.append(
            f"SoftAD's {words} is below ERM's at {below} of {len(ours)} batch sizes; by the interval "
            f"it is smaller at {smaller} and larger at {larger} (n = {ours['n'].min()} trials)."
        )
    return sentences
