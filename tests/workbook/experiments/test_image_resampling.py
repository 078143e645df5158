"""Losses of single test images of the digits in profile `rivals`."""

import pytest

from softadlib.workbook.analysis.relative import BEST, LAST
from softadlib.workbook.experiments.image_resampling import losses_by_image, stored_losses_by_image
from softadlib.workbook.studies import params, results
from softadlib.workbook.studies.protocol import Run
from softadlib.workbook.studies.train_runs import train_runs

IMAGES = 355


@pytest.fixture
def stored_rows():
    return results.read("rivals", "digits")


def test_means_are_the_measured_losses(stored_rows):
    """Trained here in one go, the run has these mean losses at its last and at its selected epoch."""
    by_image = losses_by_image("rivals", "digits", ["softad"], trials=1)
    assert len(by_image) == 2 * IMAGES
    softad = stored_rows[(stored_rows["method"] == "softad") & (stored_rows["trial"] == 0)]
    for side, ends in ((LAST, results.final(softad)), (BEST, results.best(softad))):
        chosen = results.select(ends, "loss").iloc[0]
        run = Run("softad", 0.0, 0, chosen["knob"])
        rows = train_runs(params.load("rivals", "digits"), [run], {chosen["epoch"]})
        (measured,) = rows.loc[rows["epoch"] == chosen["epoch"], "loss_test"]
        of_side = by_image[by_image["side"] == side]
        assert of_side["loss"].mean() == pytest.approx(measured, rel=1e-5)


def test_the_stored_file_has_every_trial_method_and_image():
    stored = stored_losses_by_image("digits")
    assert not stored.duplicated(["method", "side", "trial", "image"]).any()
    assert stored.groupby(["method", "side"])["trial"].nunique().tolist() == [15] * 8
    assert stored.groupby(["method", "side", "trial"])["image"].nunique().unique() == [IMAGES]
    assert set(stored["method"]) == {"erm", "sam", "smoothing", "softad"}
