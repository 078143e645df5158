"""The place of softadlib.training in 0.2.0; this file goes with the release after 0.3.0."""

raise ImportError(
    "softadlib.training is now softadlib.trainer (recipe, loop, engines, checkpoint, device) "
    "and softadlib.workbook.studies (protocol, params, run_study)"
)
