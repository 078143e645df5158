"""Sliders over two pictures: gradient shapes, and update directions on points of the plane.

A picture is redrawn as a PNG into one image, so nothing flickers. Where there are no widgets, or no
kernel behind them, the picture of the defaults remains.
"""

import base64
import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from softadlib.analysis.plotting.curves import arrows
from softadlib.experiments.mean_2d import mean_updates, squared_distances
from softadlib.experiments.pointwise import transform
from softadlib.functional import LN2, SCALES
from softadlib.methods import METHODS

SHAPES: dict[str, dict[str, Any]] = {
    "iflood": {"linewidth": 1.8},
    "softad": {"linewidth": 2.4},
    "erm": {"linewidth": 1.4, "linestyle": "--"},  # last: iFlood coincides with it above θ
}
UPDATES = ("flooding", "iflood", "softad")
LOSSES = np.linspace(0, 3, 601)


def _figure(width: float) -> Figure:
    """Make a figure without a layout engine, which would take most of the time of a redraw."""
    return Figure((width, 3.8), layout="none")  # type: ignore[arg-type]  # matplotlib takes "none" too


def draw_shapes(theta: float, sigma: float, scale: str = "code") -> Figure:
    """Draw transformed loss and per-sample gradient weight against the loss: ERM, iFlood, SoftAD."""
    fig = _figure(8.5)
    margins = {"left": 0.07, "right": 0.98, "top": 0.91, "bottom": 0.23, "wspace": 0.2}
    axes = fig.subplots(1, 2, gridspec_kw=margins)
    for name, style in SHAPES.items():
        line = {"color": METHODS[name].colour, "label": METHODS[name].label} | style
        for ax, curve in zip(axes, transform(name, LOSSES, theta, sigma, scale)):
            ax.plot(LOSSES, curve, **line)
    axes[0].set(ylabel="transformed loss", ylim=(0, 3))
    axes[1].set(ylabel="weight of the gradient", ylim=(-2, 2))
    axes[1].axhline(0, color="0.4", linewidth=0.8, zorder=0)
    for ax in axes:
        ax.axvline(theta, color="0.4", linestyle=":", linewidth=1.4)
        ax.set(xlabel="loss ℓ (dotted: θ)", xlim=(0, 3))
    words = " ≥ ln 2: cross-entropy's minimiser predicts wrong" if theta >= LN2 else ""
    fig.suptitle(f"θ = {theta:.3g}{words}, σ = {sigma:.3g} ({scale})", fontsize="medium")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=3)
    return fig


def draw_updates(
    theta: float,
    sigma: float,
    scale: str = "text",
    *,
    points: np.ndarray,
    candidates: Mapping[str, np.ndarray],
    step: float = 0.75,
) -> Figure:
    """Draw updates (strong) and their per-point terms (pale) from each candidate, a panel per method.

    `points` (n, 2); `candidates` colour → (2,). Losses ‖w − z‖², as in `mean_2d.mean_updates`.
    """
    fig = _figure(9.5)
    margins = {"left": 0.04, "right": 0.99, "top": 0.85, "bottom": 0.07, "wspace": 0.08}
    axes = fig.subplots(1, len(UPDATES), sharex=True, sharey=True, gridspec_kw=margins)
    for ax, method in zip(axes, UPDATES):
        ax.scatter(*np.transpose(points), s=18, color="black")
        ax.scatter(*np.mean(points, axis=0), s=110, marker="*", color="gold", ec="0.3", zorder=4)
        for colour, w in candidates.items():
            terms = mean_updates(method, w, points, theta, step, sigma, scale)
            ax.scatter(*w, marker="s", color=f"xkcd:{colour}")
            arrows(ax, w, terms, color=f"xkcd:{colour}", alpha=0.3, width=0.007)
            emphasis = {"color": f"xkcd:{colour}", "edgecolor": "black", "linewidth": 0.6}
            arrows(ax, w, terms.mean(axis=0, keepdims=True), zorder=5, **emphasis)
        ax.set(xlim=(-6, 6), ylim=(-6, 6), aspect="equal", title=METHODS[method].label)
    risks = [f"{c} {squared_distances(w, points).mean():.4g}" for c, w in candidates.items()]
    facts = f"θ = {theta:.4g}, σ = {sigma:.3g} ({scale}); risks: {', '.join(risks)}"
    fig.suptitle(facts, fontsize="medium")
    return fig


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


class Explorer:
    """Sliders θ and σ and a choice of scale over `draw(theta, sigma, scale)` → Figure.

    Shown by a front end with widgets it is live; stored, printed or without ipywidgets it is the
    picture of the defaults. `theta`: its least and greatest value; `sigma`: powers of ten likewise.
    """

    def __init__(
        self,
        draw: Callable[[float, float, str], Figure],
        defaults: tuple[float, float, str],
        theta: tuple[float, float],
        sigma: tuple[float, float] = (-1.5, 1.0),
    ):
        self.draw, self.defaults, self.box = draw, defaults, None
        self.still = png(draw(*defaults))
        try:
            import ipywidgets
        except ImportError:
            return
        step = (theta[1] - theta[0]) / 200
        limits = [
            {"min": theta[0], "max": theta[1], "step": step, "readout_format": ".3g"},
            {"min": sigma[0], "max": sigma[1], "step": 0.05, "readout_format": ".3g"},
        ]
        makers = ipywidgets.FloatSlider, ipywidgets.FloatLogSlider
        self.controls = [
            make(value=value, description=name, **limit)
            for make, value, name, limit in zip(makers, defaults, "θσ", limits)
        ]
        scales = {"options": SCALES, "value": defaults[2], "description": "scale"}
        self.controls.append(ipywidgets.ToggleButtons(**scales))
        self.image = ipywidgets.Image(value=self.still, format="png")
        for control in self.controls:
            control.observe(self._redraw, names="value")
        self.box = ipywidgets.VBox([*self.controls, self.image])

    def _redraw(self, _change: object) -> None:
        self.image.value = png(self.draw(*(control.value for control in self.controls)))

    def __repr__(self) -> str:
        theta, sigma, scale = self.defaults
        return f"picture at θ = {theta:.4g}, σ = {sigma:.4g}, scale {scale}"

    def _repr_mimebundle_(self, **_options: object) -> dict[str, object]:
        live = {} if self.box is None else dict(self.box._repr_mimebundle_())
        still = base64.b64encode(self.still).decode()
        return live | {"image/png": still, "text/plain": repr(self)}
