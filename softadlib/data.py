"""The place of softadlib.data in 0.2.0; this file goes with the release after 0.3.0."""

raise ImportError(
    "softadlib.data is now softadlib.workbook.data; Splits are in softadlib.trainer.splits"
)
