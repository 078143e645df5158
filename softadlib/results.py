"""The place of softadlib.results in 0.2.0; this file goes with the release after 0.3.0."""

raise ImportError("softadlib.results is now softadlib.workbook.studies.results")
