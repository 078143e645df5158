"""The place of softadlib.experiments in 0.2.0; this file goes with the release after 0.3.0."""

raise ImportError("softadlib.experiments is now softadlib.workbook.experiments")
