"""Former place of `softadlib.analysis.plots`."""
