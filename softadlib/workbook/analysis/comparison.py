"""The methods of a profile side by side: their test loss over the epochs, and one table."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import gmean

from softadlib.methods import GREY
from softadlib.workbook.analysis import plots, tables
from softadlib.workbook.studies import results
from softadlib.workbook.studies.selection import lacks_best_epochs

HIGHEST = ("acc_last", "acc_early")
"""Columns in which the largest number is the best; in the others of `COMPARED` it is the smallest."""
COMPARED = ("loss_last", "loss_early", "loss_after_t", *HIGHEST)
"""Columns in which the best method of each data set is bold."""


def lowest_noise(rows: pd.DataFrame) -> pd.DataFrame:
    """Return of each data set the rows with the fewest flipped labels."""
    return rows[rows["label_noise"] == rows.groupby("dataset")["label_noise"].transform("min")]


def picture(rows: pd.DataFrame) -> Figure:
    """Draw the test loss over the epochs, a panel per data set and a line per method.

    Lines are means over trials, of each the value with the lowest validation loss after the last epoch.
    A mark is where training should have stopped: the mean epoch and the mean test loss of the runs
    stopped at their lowest validation loss. Where epochs in between were not measured, the line is a
    straight one from the mark to the last epoch. The axis leaves out the high losses of the first third.
    """
    rows = lowest_noise(rows)
    lines = results.curves(rows, "loss").groupby(["dataset", "method", "epoch"])["loss_test"].mean()
    stops = _stopped(rows).groupby(["dataset", "method"])[["epoch", "loss_test"]].mean()
    datasets = tables.in_order(rows["dataset"])
    columns = min(2, len(datasets))
    lines_of_panels = -(-len(datasets) // columns)
    fig, axes = plots.panels(lines_of_panels, columns, 2.2 if lines_of_panels > 1 else 3.0)
    fig.set_layout_engine("constrained", h_pad=0.08)
    for ax, dataset in zip(axes.flat, datasets):
        plots.head(ax, tables.TITLES[dataset], "test loss (nats)")
        ends: list[float] = []
        labels: dict[str, float] = {}
        for method in tables.by_registry(lines[dataset].index.get_level_values("method")):
            line = lines[dataset, method]
            style: dict[str, Any] = {"color": plots.PALETTE[method]}
            is_grey = plots.PALETTE[method] == GREY
            mark = "o" if is_grey else plots.MARKS[method]
            if (dataset, method) in stops.index:
                epoch, loss = stops.loc[(dataset, method)]
                if len(line) == 1:
                    line = pd.concat([pd.Series({epoch: loss}), line])
                ax.plot(epoch, loss, mark, markersize=6, zorder=3, **style)
                ends.append(loss)
            ends += [*line[line.index > line.index[-1] / 3]]
            ax.plot(line, linewidth=1.4, marker="." if len(line) == 1 else "", **style)
            if is_grey:
                labels[tables.LABELS[method]] = line.iloc[-1]
        low, high = np.nanmin(ends), np.nanmax(ends)
        room = 0.3 * (high - low) or 0.3 * high
        ax.set(xlim=(0, line.index[-1]), ylim=(low - room, high + room), xlabel="epoch")
        place = -np.inf
        for label, loss in sorted(labels.items(), key=lambda item: item[1]):
            place = max(loss, place + 0.7 * room)  # no two labels on one line
            plots.label_end(ax, line.index[-1], place, label)
    for ax in axes.flat[len(datasets) :]:
        ax.set_axis_off()
    handles = plots.legend_handles(rows[[plots.PALETTE[m] != GREY for m in rows["method"]]])
    fig.legend(handles=handles, loc="outside upper center", ncols=5, fontsize="small")
    return fig


def _stopped(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the selected runs at their lowest validation loss; none where it was not looked for."""
    return rows.iloc[:0] if lacks_best_epochs(rows) else results.select(results.best(rows), "loss")


def side_by_side(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the methods of each data set side by side: a line per method, means over trials.

    Every trial takes the run with the lowest validation loss, once after the last epoch and, where best
    epochs were measured, once among those. `value_…` is the value that most trials select, of equals
    the smallest. `temperature` is the geometric mean of the number, fitted on the validation data,
    that divides the logits after the last epoch; `loss_after_t` is the test loss then.
    """
    rows = lowest_noise(rows)
    key = ["dataset", "method"]
    last = results.select(results.final(rows), "loss").groupby(key)
    table = last["loss_test"].mean().to_frame("loss_last")
    early = _stopped(rows).groupby(key)
    table["loss_early"] = early["loss_test"].mean()
    if "prior_temperature" in rows:
        table["temperature"] = last["prior_temperature"].agg(gmean)
        table["loss_after_t"] = last["prior_loss_test"].mean()
    table["acc_last"] = last["acc_test"].mean()
    table["acc_early"] = early["acc_test"].mean()
    table["n"] = last.size()
    table["value_last"] = last["knob"].agg(_most_frequent)
    table["value_early"] = early["knob"].agg(_most_frequent)
    return tables.ordered(table.dropna(axis="columns", how="all").reset_index())


def _most_frequent(values: pd.Series) -> float:
    """Return the smallest of the most frequent values; NaN where there is none."""
    return float(min(values.mode(), default=float("nan")))


def shown(table: pd.DataFrame) -> tables.Shown:
    """Return the table of `side_by_side` as a page shows it, the best of each data set in bold."""
    text = tables.render(table)
    bold = pd.DataFrame(False, index=text.index, columns=text.columns)
    for name in table.columns.intersection(COMPARED):
        cell = tables.CELLS[name]
        rounded = (table[name] * cell.factor).round(cell.digits)
        best = rounded.groupby(table["dataset"]).transform("max" if name in HIGHEST else "min")
        bold[cell.heading] = rounded == best
    text["dataset"] = table["dataset"].map(tables.TITLES).where(~table["dataset"].duplicated(), "")
    text["method"] = table["method"].map(tables.LABELS)
    text = text.rename(columns={"dataset": "data set", "n": "trials"})
    text = text.set_index(["data set", "method"])
    bold = bold.rename(columns={"n": "trials"})[text.columns]
    return tables.Shown(text, bold.set_index(text.index))
