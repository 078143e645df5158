"""One thread and one fixed set of hypothesis examples: the same numbers at every run."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("fixed", derandomize=True, deadline=None, database=None, max_examples=40)
settings.load_profile("fixed")
