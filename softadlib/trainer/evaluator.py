"""What is measured of the runs of an engine."""

import copy
import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from softadlib.trainer.engines import Engine
from softadlib.trainer.evaluation import Row, as_rows, evaluate, loss_summary, model_norm
from softadlib.trainer.splits import PARTS

SAMPLES_AT_ONCE = 1000
"""Samples per forward pass on a CPU, as its cache holds.

On an AMD EPYC, measuring 10,000 samples took 1.03 (mlp4x500) and 1.10 (mlp1x1000) times as long with 250, and
1.10 and 1.08 with all at once.
"""
GPU_BYTES = 2**31
"""Bytes of activations per forward pass on a GPU, of all runs together."""


class Evaluator:
    """Measures the runs of an engine as they are, in evaluation mode and without gradients."""

    def __init__(self, engine: Engine):
        self.engine = engine

    def measure(self) -> Row:
        """Return loss and accuracy on train, val and test, and the model norm, (R,) each."""
        measures = self._measures_of(PARTS)
        norms = [model_norm(self.engine.tensors_of(run)[0]) for run in range(len(self.engine))]
        return as_rows({**measures, "model_norm": torch.stack(norms)})

    def validation_losses(self) -> np.ndarray:
        """Return the mean validation loss of every run, (R,)."""
        losses = self._measures_of(("val",))["loss_val"]
        return np.asarray(losses.cpu().double())

    def measure_losses(self, calibrated: bool, closed_form: bool = False) -> Row:
        """Summarise the losses of single samples: {column: (R, 3, …)}, one row per part.

        `closed_form`: also those of the class probabilities in closed form.
        """
        rows = []
        for run in range(len(self.engine)):
            log_probabilities = self._log_probabilities(run) if closed_form else None
            logits, labels = self.outputs(run, PARTS)
            rows.append(loss_summary(logits, labels, calibrated, log_probabilities))
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def outputs(self, run: int, parts: Sequence[str]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the logits (n, C) of one run and the labels (n,), for each part of its trial's data."""
        data = self.engine.splits
        trial = self.engine.trials[run]
        indices = [getattr(data, part)[trial] for part in parts]
        logits = []
        with self.engine.evaluation_mode():
            network = self.engine.network(run)
            for index in indices:
                passes = index.split(self._samples_per_pass(1))
                outputs = [network(data.inputs(data.x[some], trial)) for some in passes]
                logits.append(torch.cat(outputs))
        return logits, [data.y[index] for index in indices]

    def _log_probabilities(self, run: int) -> Callable[[Tensor], Tensor]:
        """Return logits (n, C) of one run ↦ ln p (n, C), class probabilities in closed form."""
        closed_form = self.engine.method.log_probabilities
        assert closed_form is not None
        own = {name: value[run].cpu() for name, value in self.engine.per_run.items()}
        of_objective, _ = self.engine.arguments(own)
        hyperparameter = self.engine.hyperparameter[run].cpu()
        return lambda logits: closed_form(logits, hyperparameter, **of_objective)

    def _measures_of(self, parts: Sequence[str]) -> dict[str, Tensor]:
        """Return loss and accuracy on `parts`, (R,) each."""
        engine = self.engine
        with engine.evaluation_mode():
            together = engine.stacked_network()
            if together is not None:
                size = self._samples_per_pass(len(engine))
                return self._measures_of_network(together, engine.trial, size, parts)
            size = self._samples_per_pass(1)
            rows = []
            for run, trial in enumerate(engine.trials):
                rows.append(self._measures_of_network(engine.network(run), trial, size, parts))
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def _measures_of_network(
        self,
        network: Callable[[Tensor], Tensor],
        trial: int | Tensor,
        size: int,
        parts: Sequence[str],
    ) -> dict[str, Tensor]:
        """Return loss and accuracy on each part, by passes of `size` samples.

        They are () for one trial, and (R,) for the trials (R,) of a network of R runs.
        """
        data = self.engine.splits
        measures = {}

        def logits(index: Tensor) -> Tensor:
            return network(data.inputs(data.x[index], trial))

        for part in parts:
            index = getattr(data, part)[trial]
            both = evaluate(logits, index, data.y, size)
            measures[f"loss_{part}"], measures[f"acc_{part}"] = both.unbind(-1)
        return measures

    def _samples_per_pass(self, runs: int) -> int:
        """Return how many samples of `runs` runs a forward pass takes."""
        if self.engine.device.type == "cpu":
            return SAMPLES_AT_ONCE
        bytes_per_sample = self._activations * self.engine.hyperparameter.element_size()
        return max(1, GPU_BYTES // (runs * bytes_per_sample))

    @functools.cached_property
    def _activations(self) -> int:
        """Floats that the layers put out for one sample; found once, it costs a forward pass."""
        return max(1, count_activations(self.engine.template, self.engine.splits.shape))


def count_activations(network: nn.Module, shape: tuple[int, ...]) -> int:
    """Count the floats that the layers of `network` put out for one sample of `shape`."""
    sizes: list[int] = []
    network = copy.deepcopy(network).eval()
    for module in network.modules():
        if not any(True for _ in module.children()):
            module.register_forward_hook(lambda m, args, out: sizes.append(out[0].numel()))
    with torch.no_grad():
        network(torch.zeros(2, *shape, dtype=next(network.parameters()).dtype))
    return sum(sizes)
