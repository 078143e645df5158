"""Sliders that do not queue: a picture is drawn for their newest values alone."""

import asyncio
import io
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

PAUSE = 0.2
"""Seconds without a change after which drawing begins."""


def sliders(draw: Callable[..., Figure], **controls: Any) -> Any:
    """Show controls above the picture that `draw` makes of their values. It needs a running kernel.

    `ipywidgets.interact` calls its function once for each change, so that changes during a slow call
    queue up. Here a change only marks what is wanted; the newest values are drawn. A line below the
    controls says which values are being drawn, and what went wrong.

    Args:
        draw: takes the value of each control by its name, and returns a figure, which is closed.
        controls: widgets with a value.
    """
    loop = asyncio.get_running_loop()
    status = widgets.Label()
    widths = {"max_width": "100%", "width": "520px"}
    picture = widgets.Image(format="png", layout=widgets.Layout(**widths))
    waiting: list[asyncio.TimerHandle] = []

    def show() -> None:
        try:
            figure = draw(**{name: control.value for name, control in controls.items()})
        except Exception as error:  # what a cell would show below itself
            status.value = f"{type(error).__name__}: {error}"
            return
        content = io.BytesIO()
        figure.savefig(content, dpi=200, bbox_inches="tight")
        plt.close(figure)
        picture.value = content.getvalue()
        status.value = ""

    def mark(_: object = None) -> None:
        values = ", ".join(f"{c.description or name} = {c.value}" for name, c in controls.items())
        status.value = f"busy: {values}"
        while waiting:
            waiting.pop().cancel()
        waiting.append(loop.call_later(PAUSE, show))

    for control in controls.values():
        control.layout = widgets.Layout(**widths)
        control.observe(mark, "value")
    mark()
    return widgets.VBox([*controls.values(), status, picture])
