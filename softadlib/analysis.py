"""The place of softadlib.analysis in 0.2.0; this file goes with the release after 0.3.0."""

raise ImportError("softadlib.analysis is now softadlib.workbook.analysis")
