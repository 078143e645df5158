"""Made-up rows of losses for the tests of analysis."""

import math

import numpy as np
import pandas as pd

from softadlib.trainer.evaluation import LEVELS
from softadlib.trainer.splits import PARTS
from softadlib.workbook.studies.schema import CALIBRATION


def run(method, trial, knob, losses, dataset="gaussian", epochs=(0, 10), **scaled):
    """Rows of one run: `losses` of samples by part, at every epoch; `scaled` columns by part."""
    frames = []
    for part in PARTS:
        values = np.asarray(losses[part], dtype=float)
        for epoch in epochs:
            line = {"dataset": dataset, "method": method, "label_noise": 0.0, "trial": trial}
            line |= {"knob": math.nan if knob is None else knob, "epoch": epoch, "split": part}
            line |= {"samples": len(values), "loss": values.mean()}
            line["quantiles"] = np.quantile(values, LEVELS).astype(np.float32)
            last = epoch == epochs[-1]
            line |= {c: scaled.get(c, {}).get(part, 0.0) if last else math.nan for c in CALIBRATION}
            frames.append(line)
    return pd.DataFrame(frames)
