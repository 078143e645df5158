"""Losses of single test images of the digits in profile `rivals`."""

from softadlib.workbook.experiments.image_resampling import stored_losses_by_image

IMAGES = 355


def test_the_stored_file_has_every_trial_method_and_image():
    stored = stored_losses_by_image("digits")
    assert not stored.duplicated(["method", "side", "trial", "image"]).any()
    assert stored.groupby(["method", "side"])["trial"].nunique().tolist() == [15] * 8
    assert stored.groupby(["method", "side", "trial"])["image"].nunique().unique() == [IMAGES]
    assert set(stored["method"]) == {"erm", "sam", "smoothing", "softad"}
