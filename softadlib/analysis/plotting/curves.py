"""Former place of `softadlib.analysis.plots`; goes with the last page that imports it."""

from softadlib.analysis.plots import *  # noqa: F403
