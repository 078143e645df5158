"""A stand-in for a CUDA graph."""

from softadlib.training.engines import cuda_graph


class Recorded:
    """Stands for a CUDA graph: the step as it was captured, reading its slot at each replay."""

    def __init__(self):
        self.captures = 0

    def __call__(self, step):
        self.captures += 1
        for _ in range(cuda_graph.WARM_UP):
            step()
        return step
