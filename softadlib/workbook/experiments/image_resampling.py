"""Losses of single test images, for a study in which all trials share their test images.

An interval over such trials is for new trials with the same images. With the losses of each image,
`analysis.statistics.resampled_interval` draws images anew, too.
"""

import dataclasses
from collections.abc import Sequence

import pandas as pd
import torch
import torch.nn.functional as nnF

from softadlib._files import home
from softadlib.trainer.device import numerics, pick_device
from softadlib.trainer.evaluator import Evaluator
from softadlib.trainer.loop import train
from softadlib.workbook.analysis.relative import BEST, LAST
from softadlib.workbook.studies import params, results
from softadlib.workbook.studies.load_splits import load_splits
from softadlib.workbook.studies.protocol import Run
from softadlib.workbook.studies.train_runs import make_engine


def losses_by_image(
    profile: str, dataset: str, methods: Sequence[str], trials: int | None = None
) -> pd.DataFrame:
    """Train the selected runs of a stored study again; return their loss of every test image.

    A method's run in a trial is the one with the lowest validation loss, at its last epoch and at its
    best one (early stopping). Columns: method, side, trial, image, and loss in nats.

    Args:
        profile: with `best_epoch` and a constant learning rate.
        dataset: of the profile; its trials share the test part.
        methods: of the profile.
        trials: the first of them; None is all.
    """
    protocol = params.load(profile, dataset)
    splits = load_splits(protocol, 0.0)
    device = pick_device(protocol.device)
    splits = splits.to(device, getattr(torch, protocol.dtype))
    rows = results.read(profile, dataset)
    rows = rows[rows["method"].isin(methods) & (rows["trial"] < (trials or protocol.trials))]
    tables = []
    for side, ends in ((LAST, results.final(rows)), (BEST, results.best(rows))):
        for row in results.select(ends, "loss").itertuples():
            engine = make_engine(protocol, [Run(row.method, 0.0, row.trial, row.knob)], splits)
            # The learning rate is constant, so that a shorter training is one that is stopped.
            recipe = dataclasses.replace(protocol.recipe, epochs=row.epoch)
            with numerics(device, protocol.precision):
                train(engine, recipe, protocol.seeds, eval_epochs=())
                (logits,), (targets,) = Evaluator(engine).outputs(0, ("test",))
            losses = nnF.cross_entropy(logits, targets, reduction="none").cpu()
            images = {"image": range(len(losses)), "loss": losses}
            tables.append(
                pd.DataFrame({"method": row.method, "side": side, "trial": row.trial, **images})
            )
    return pd.concat(tables, ignore_index=True)


def stored_losses_by_image(dataset: str) -> pd.DataFrame:
    """Return the stored `losses_by_image("rivals", dataset, …)` of ERM, SAM, SoftAD and label smoothing.

    It is the file `outputs/test-images/<dataset>.parquet`; digits has one.
    """
    return pd.read_parquet(home() / "outputs" / "test-images" / f"{dataset}.parquet")
