"""What others see of perturbed weights: monitors, other threads, and memory."""

import gc
import threading

import torch
from helpers.steps import X, Y, closure_from, loss_of, network, step, weights
from torch import nn
from torch.optim import SGD

from softadlib import ERM, SAM, LossMonitor


def test_two_optimizers_in_two_threads_do_not_meet():
    """Each second pass waits until the other thread is in its own."""
    meet = threading.Barrier(2, timeout=60)
    alone, ends, counts = network(), {}, {}
    models = [network(), network()]
    expected = step(alone, SAM(SGD(alone.parameters(), lr=0.3), 0.2), 5)

    def train(thread):
        model, criterion = models[thread], ERM()
        monitor = LossMonitor(criterion)
        optimizer = SAM(SGD(model.parameters(), lr=0.3), 0.2)

        def loss():
            meet.wait()
            value = criterion(model(X), Y)
            meet.wait()
            return value

        for _ in range(5):
            optimizer.step(closure_from(optimizer, loss))
        ends[thread], counts[thread] = weights(model), monitor.summary()["batches"]

    threads = [threading.Thread(target=train, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for thread in range(2):
        torch.testing.assert_close(ends[thread], expected, rtol=1e-6, atol=1e-6)
        assert counts[thread] == 5


def test_a_thread_without_sam_is_monitored_while_another_is_in_its_second_pass():
    model, criterion = network(), ERM()
    monitor, calls = LossMonitor(criterion), []
    optimizer = SAM(SGD(model.parameters(), lr=0.3), 0.2)

    def loss():
        calls.append(1)
        if len(calls) == 2:
            thread = threading.Thread(target=lambda: criterion(model(X), Y))
            thread.start()
            thread.join()
        return criterion(model(X), Y)

    optimizer.step(closure_from(optimizer, loss))
    assert monitor.summary()["batches"] == 2, "the first pass, and that of the other thread"


def test_between_the_halves_nothing_is_counted():
    model, criterion = network(), ERM()
    monitor = LossMonitor(criterion)
    optimizer = SAM(SGD(model.parameters(), lr=0.3), 0.2)
    criterion(model(X), Y).backward()
    optimizer.first_step(zero_grad=True)
    criterion(model(X), Y).backward()
    assert monitor.summary()["batches"] == 1, "still at perturbed weights"
    optimizer.second_step()
    criterion(model(X), Y)
    assert monitor.summary()["batches"] == 2


def test_an_optimizer_that_is_dropped_between_its_halves_leaves_nothing_behind():
    model, criterion = network(), ERM()
    monitor = LossMonitor(criterion)
    optimizer = SAM(SGD(model.parameters(), lr=0.3), 0.2)
    loss_of(model).backward()
    optimizer.first_step(zero_grad=True)
    del optimizer
    gc.collect()
    criterion(model(X), Y)
    assert monitor.summary()["batches"] == 1


def test_a_step_holds_one_extra_copy_of_the_weights():
    """Counted at the second backward, where a step is at its largest."""
    model = nn.Linear(300, 300, bias=False)
    optimizer = SAM(SGD(model.parameters(), lr=0.1), 0.2)
    counts = []

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 300)).square().mean()
        loss.backward()
        assert model.weight.grad is not None  # which makes it an object of Python
        tensors = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
        own = {t.untyped_storage().data_ptr() for t in tensors if t.shape == model.weight.shape}
        counts.append(len(own))
        return loss

    optimizer.step(closure)
    assert counts == [2, 3], "weights and gradient; and the weights before the climb"
