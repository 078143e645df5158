"""Names, order and types of the columns of the metrics table."""

MEASURES = (
    "loss_train",
    "loss_val",
    "loss_test",
    "acc_train",
    "acc_val",
    "acc_test",
    "model_norm",
)


COLUMNS = ("dataset", "method", "trial", "knob", "epoch", *MEASURES)
"""One row = one run at one epoch. `label_noise` joins them where it varies within a file."""


RUN_KEY = ["label_noise", "trial", "knob"]
"""What tells the runs of one dataset and method apart."""


ALL_COLUMNS = [*COLUMNS[:3], "label_noise", *COLUMNS[3:]]


NAMES = ["dataset", "method"]


ROW_ORDER = [*NAMES, *RUN_KEY, "epoch"]
