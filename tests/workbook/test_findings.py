"""The first screen of the page follows its rows."""

import pandas as pd
import pytest

from softadlib.analysis import paper
from softadlib.workbook import findings


def means(dataset="gaussian", **changes):
    """The paper's own gaps on one dataset; SoftAD has the smallest norm and test loss."""
    gaps = paper.printed(1, 3)["mean"].dropna()[dataset]
    values = {
        method: {"gap": gap, "model_norm": 52.0, "loss_test": 0.5} for method, gap in gaps.items()
    }
    values["softad"] |= {"model_norm": 51.0, "loss_test": 0.1}
    for method, facts in changes.items():
        values[method] = values.get(method, values["erm"]) | facts
    return pd.DataFrame(
        [
            {"dataset": dataset, "method": method, "n": 3, **facts}
            for method, facts in values.items()
        ]
    )


def test_rows_like_the_papers_agree_with_it():
    agree, differ = findings.compare(means())
    assert agree == [
        "SoftAD has the smallest gap: gaussian (n = 3)",
        "ERM has the largest gap: gaussian (n = 3)",
        "SoftAD has the smallest norm: gaussian (n = 3)",
    ]
    assert differ == []


def test_the_test_loss_is_compared_on_images_alone():
    agree, differ = findings.compare(means("fashionmnist"))
    assert "SoftAD has the smallest test loss: fashionmnist (n = 3)" in agree
    _, differ = findings.compare(means("fashionmnist", sam={"loss_test": 0.01}))
    words = "The smallest test loss (the paper: SoftAD's) is another's: SAM on fashionmnist (n = 3)"
    assert words in differ


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"flooding": {"gap": 0.0}}, "Flooding has the smallest gap, in the paper SoftAD"),
        ({"softad": {"gap": 0.9}}, "SoftAD has the largest gap, in the paper ERM"),
        (
            {"erm": {"model_norm": 1.0}},
            "The smallest norm (the paper: SoftAD's) is another's: ERM on gaussian (n = 3)",
        ),
        ({"iflood": {"gap": -1.0}}, "iFlood, not in the paper's table, has a smaller gap still"),
    ],
)
def test_every_statement_turns_round_with_the_rows(changes, words):
    _, differ = findings.compare(means(**changes))
    assert any(line.startswith(words) for line in differ), differ


def test_few_trials_are_said_to_decide_nothing():
    facts = {"dataset": "gaussian", "label_noise": "0", "grid": 40, "epochs": 500, "runs": 483}
    lines = findings.what_was_run(pd.DataFrame([facts | {"trials": 3}]))
    assert lines[0] == "gaussian: 3 trials, up to 40 values per swept method, 500 epochs, 483 runs"
    assert "no exact permutation test can decide" in lines[1]
    assert len(findings.what_was_run(pd.DataFrame([facts | {"trials": 15}]))) == 1
    both = pd.DataFrame([facts | {"trials": n} for n in (15, 3)])
    assert "3 to 15 trials, " in findings.what_was_run(both)[0]
    both["epochs"] = [500, 40]
    assert ", 40 to 500 epochs, " in findings.what_was_run(both)[0]
