"""What the process imports from which kernels are forked: importing this module imports all of it.

Imports alone: no thread, figure, random number or CUDA context may exist when a kernel is forked.
"""

import gc
import importlib
import os
import signal
import sys

PARENT = os.getppid()
SEARCH_PATH = [folder for folder in sys.path if folder]
"""`sys.path` as a kernel that is started by its command has it, before IPython adds `""`."""
MODULES = (
    "torch",
    "torch._dynamo",  # every torch.optim.Optimizer imports it
    "pandas",
    "pyarrow.parquet",
    "matplotlib.pyplot",
    "scipy.stats",
    "seaborn",
    "ipykernel.kernelapp",
    "ipykernel.debugger",
    "joblib",
    "softadlib.analysis.plotting.curves",
    "softadlib.analysis.readings",
    "softadlib.analysis.tables",
    "softadlib.training.study",
)

# Torch, ipykernel and matplotlib read these while they are imported.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")

signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command that started this process handles Ctrl-C
gc.disable()
for name in MODULES:
    if os.getppid() != PARENT:
        os._exit(1)  # the command has ended meanwhile
    importlib.import_module(name)
gc.enable()
