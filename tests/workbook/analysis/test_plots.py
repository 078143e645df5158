"""What is drawn, read back from the Axes: numbers by hand, never pictures."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgba
from matplotlib.text import Text

from softadlib.methods import METHODS
from softadlib.workbook.analysis import plots as figures
from softadlib.workbook.analysis.statistics import mean_interval
from softadlib.workbook.studies.schema import ALL_COLUMNS


@pytest.fixture(autouse=True)
def _clean_slate():
    mpl.use("Agg")
    with plt.rc_context():
        figures.use_style()
        yield
    plt.close("all")


def table(methods, epochs=(0, 1), trials=2, **values):
    """Rows whose measures are 1 + epoch + trial/10 + the method's place, unless given."""
    rows = []
    for place, method in enumerate(methods):
        for trial in range(trials):
            for epoch in epochs:
                row = dict.fromkeys(ALL_COLUMNS, 1 + epoch + trial / 10 + place)
                row |= {"dataset": "gaussian", "method": method, "trial": trial, "epoch": epoch}
                rows.append(row | {"knob": 0.1, "label_noise": 0.0} | values)
    return pd.DataFrame(rows)


def lines(ax, method):
    """{line style: (x, y)} of the lines in a method's colour."""
    colour = to_rgba(METHODS[method].colour)
    mine = [line for line in ax.get_lines() if to_rgba(line.get_color()) == colour]
    return {line.get_linestyle(): (line.get_xdata(), line.get_ydata()) for line in mine}


def names(legend):
    return [text.get_text() for text in legend.get_texts()]


class TestPanels:
    def test_a_picture_is_five_inches_wide_and_each_row_adds_its_height(self):
        figure, axes = figures.panels(3, 2, height=1.5)
        assert axes.shape == (3, 2)
        assert figure.get_size_inches().tolist() == [5.0, 4.5]

    def test_the_names_of_a_panel_stand_above_it_and_apart(self):
        figure, axes = figures.panels()
        ax = axes[0, 0]
        figures.head(ax, "gaussian", "test loss (nats)")
        figure.canvas.draw()
        (note,) = ax.texts
        title = next(text for text in ax.findobj(Text) if text.get_text() == "gaussian")
        box, above = note.get_window_extent(), title.get_window_extent()
        assert [ax.get_title("left"), note.get_text()] == ["gaussian", "test loss (nats)"]
        assert box.y0 > ax.get_window_extent().y1
        assert above.y0 > box.y1
        assert above.x0 == pytest.approx(ax.get_window_extent().x0)

    def test_small_letters_are_eight_points_high_on_a_telephone(self):
        size = mpl.rcParams["font.size"] * mpl.font_manager.font_scalings["small"]
        points = size * 100 / 72 * 358 / (100 * figures.PAGE_WIDTH)
        assert points == pytest.approx(8, abs=0.1)


class TestCells:
    def test_by_hand(self):
        assert figures.cell_edges([0, 1, 3]).tolist() == [-0.5, 0.5, 2, 4]
        np.testing.assert_allclose(figures.cell_edges([1, 100], geometric=True), [0.1, 10, 1000])
        assert figures.cell_edges([2]).tolist() == [1.5, 2.5]

    @given(
        st.lists(st.integers(1, 10**6), min_size=1, max_size=30, unique=True).map(sorted),
        st.booleans(),
    )
    def test_every_value_lies_in_its_cell(self, values, geometric):
        edges = figures.cell_edges(values, geometric)
        assert len(edges) == len(values) + 1
        assert (edges[:-1] < values).all()
        assert (values < edges[1:]).all()


class TestTrajectories:
    def test_lines_are_the_means_over_trials(self):
        rows = table(["erm", "softad"])
        rows["loss_train"] /= 2
        ax = figures.trajectory_panels(rows).axes[0]
        assert len(ax.get_lines()) == 4
        drawn = lines(ax, "softad")  # in place 1; trials 0.0 and 0.1 apart
        np.testing.assert_allclose(drawn["-"], [[0, 1], [2.05, 3.05]])
        np.testing.assert_allclose(drawn["--"], [[0, 1], [1.025, 1.525]])
        assert not any(band.get_paths() for band in ax.collections), "two trials have no band"

    def test_the_band_is_students_interval(self):
        rows = table(["erm"], trials=3, epochs=(0, 1))
        ax = figures.trajectory_panels(rows).axes[2]
        corners = ax.collections[0].get_paths()[0].vertices
        at_zero = corners[corners[:, 0] == 0][:, 1]
        assert (at_zero.min(), at_zero.max()) == pytest.approx(mean_interval([1, 1.1, 1.2])[1:3])

    def test_the_axis_of_accuracy_leaves_out_the_first_tenth(self):
        rows = table(["erm"], epochs=range(10))
        for column in ("acc_train", "acc_test"):
            rows[column] = 0.8 + rows["epoch"] / 100
        rows.loc[rows["epoch"] == 0, ["acc_train", "acc_test"]] = 0.1
        low, high = figures.trajectory_panels(rows).axes[1].get_ylim()
        assert (low, high) == pytest.approx((0.81 - 0.08 * 0.08, 0.89 + 0.08 * 0.08))

    @pytest.mark.parametrize("lost", [np.nan, np.inf])
    def test_a_diverged_trial_is_left_out_and_counted(self, lost):
        rows = table(["erm", "sam"])
        rows.loc[(rows["method"] == "sam") & (rows["trial"] == 1), "loss_train"] = lost
        figure = figures.trajectory_panels(rows)
        np.testing.assert_allclose(lines(figure.axes[0], "sam")["--"][1], [2, 3])
        assert names(figure.axes[3].get_legend())[:2] == ["ERM", "SAM (1 of 2 diverged)"]

    def test_diverged_trials_of_a_shorter_training_are_counted(self):
        short = table(["erm"])
        short["loss_train"] = np.nan
        long = table(["erm"], epochs=range(10), dataset="spiral")
        handles = figures.legend_handles(pd.concat([short, long]))
        assert handles[0].get_label() == "ERM (2 of 4 diverged)"


class TestMeasureCurves:
    def test_two_datasets_stand_side_by_side_and_a_third_below(self):
        rows = pd.concat([
            table(["erm", "softad"], trials=3), table(["erm"], dataset="spiral"),
            table(["erm"], dataset="cifar10"),
        ])  # fmt: skip
        figure, axes = figures.measure_curves(rows)
        assert [ax.axison for ax in figure.axes] == [True] * 5 + [False, True, False]
        assert [ax.get_title("left") for ax in axes.values()] == [
            "gaussian", "", "spiral", "", "CIFAR-10", "",
        ]  # fmt: skip
        assert axes["spiral", "loss_test"] is figure.axes[1]
        assert axes["gaussian", "acc_test"].texts[0].get_text() == "test accuracy"
        np.testing.assert_allclose(
            lines(axes["gaussian", "loss_test"], "softad")["-"], [[0, 1], [2.1, 3.1]]
        )

    def test_the_shade_of_two_trials_spans_both(self):
        ax = figures.measure_curves(table(["sam"]), measures=("model_norm",))[0].axes[0]
        np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), [1.05, 2.05])
        edge = ax.collections[0].get_paths()[0].vertices[:, 1]
        assert set(edge.round(9)) == {1.0, 2.0, 1.1, 2.1}
        assert ax.texts[0].get_text() == "model norm"

    def test_an_axis_of_accuracy_begins_above_the_first_epochs(self):
        rows = table(["erm"], trials=3)
        rows["acc_test"] = np.linspace(0.1, 0.9, len(rows))
        assert figures.measure_curves(rows)[0].axes[1].get_ylim()[0] > 0.1

    def test_an_accuracy_is_a_moving_mean_of_five_measurements(self):
        rows = table(["erm"], epochs=range(8), trials=1)
        rows["acc_test"] = [0, 0, 0, 1, 0, 0, 0, 0.5]
        _, axes = figures.measure_curves(rows, ("acc_test", "loss_test"))
        drawn = axes["gaussian", "acc_test"].get_lines()[0].get_ydata()
        np.testing.assert_allclose(
            drawn, [0, 1 / 4, 1 / 5, 1 / 5, 1 / 5, 1.5 / 5, 0.5 / 4, 0.5 / 3]
        )


def test_grey_methods_are_labelled_at_their_lines():
    figure = figures.trajectory_panels(table(["erm", "focal"]))
    words = {text.get_text() for text in figure.axes[0].texts}
    assert words == {"cross-entropy (nats)", "Focal"}


def test_every_method_can_be_drawn_along_its_epochs():
    figures.trajectory_panels(table(METHODS))
