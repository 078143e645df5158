"""Rows of made-up results for the tests of choosing theta."""

import math

import pandas as pd

from softadlib.experiments.choosing_theta import strategies


def row(method, trial, knob, acc_val, loss_val, acc_test, noise=0.0, dataset="gaussian"):
    """The test loss is ten times the validation loss, the training loss nine times."""
    values = {"dataset": dataset, "method": method, "trial": trial, "label_noise": noise}
    values |= {"knob": knob, "epoch": 9, "loss_train": 9 * loss_val, "loss_val": loss_val}
    values |= {"loss_test": 10 * loss_val, "acc_train": 1.0, "acc_val": acc_val}
    return values | {"acc_test": acc_test, "model_norm": 50.0}


def rows(trials=2, noise=0.0, dataset="gaussian"):
    """Three grid values, of which the first two tie; the oracle's is best of all and not in the grid."""
    grid, auto, low = [], [], []
    best = strategies.oracle("gaussian", 0.0)
    for t in range(trials):
        case = {"noise": noise, "dataset": dataset}
        grid.append(row("erm", t, math.nan, 0.8, 0.5, 0.80, **case))
        for knob, acc_val, loss_val, acc_test in (
            (0.01, 0.9, 0.3, 0.87),
            (0.1, 0.9, 0.4, 0.90),
            (0.4, 0.85, 0.2, 0.88),
            (best, 0.99, 0.1, 0.99),
        ):
            grid.append(row("softad", t, knob, acc_val, loss_val, acc_test, **case))
        auto.append(row("softad", t, 0.05 + t / 100, 0.9, 0.35, 0.89 + t / 100, **case))
        low.append(row("softad", t, 0.02, 0.9, 0.25, 0.86, **case))
    return tuple(map(pd.DataFrame, (grid, auto, low)))
