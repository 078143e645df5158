"""The paper's claims of Sec. 4, tested on stored rows: paired over trials, exact, under any rule of selection."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from softadlib._validation import MissingData
from softadlib.methods import PAPER
from softadlib.workbook.analysis import tables
from softadlib.workbook.analysis.statistics import holm, paired, permutation_tests, sign_test
from softadlib.workbook.analysis.tables import COMPARED
from softadlib.workbook.studies import results
from softadlib.workbook.studies.selection import CASE

RIVALS = tuple(m for m in COMPARED if m != "softad")
"""The rivals of the paper's Table 1; its appendix adds iFlood on image sets."""
OTHERS = tuple(m for m in PAPER if m != "softad")
"""All others that the paper trains."""
SIGNIFICANT = 0.05
"""A p-value up to this counts as a finding."""
DECIDABLE = 6
"""Trials from which an exact two-sided test can reach 5 %: 2/2⁶ = 3 %."""
TOO_FEW = f"n < {DECIDABLE}"
"""What a comparison of fewer trials finds."""


@dataclass(frozen=True)
class Claim:
    """SoftAD's `measure` is below (or above) that of each of `against`, on every dataset."""

    name: str
    measure: str
    below: bool = True
    against: tuple[str, ...] = RIVALS


CLAIMS = (
    Claim("larger θ", "knob", False, ("flooding",)),
    Claim("smaller gap", "gap"),
    Claim("smaller norm", "model_norm"),
    Claim("smaller test loss", "loss_test"),
    Claim("smaller gap than iFlood", "gap", True, ("iflood",)),
    Claim("smaller norm than iFlood", "model_norm", True, ("iflood",)),
)
"""The paper's claims on θ, gap, norm and test loss, and two comparisons with iFlood."""


def paired_trials(
    chosen: pd.DataFrame, measure: str, rivals: Sequence[str]
) -> Iterator[tuple[dict[str, Any], pd.Series, pd.Series]]:
    """Yield SoftAD's values and a rival's over the trials that have both, with case and rival."""
    for case, part in chosen.groupby(CASE, sort=False):
        wide = part.pivot(index="trial", columns="method", values=measure)
        for rival in rivals:
            if {"softad", rival} <= set(wide) and len(pairs := wide[["softad", rival]].dropna()):
                facts = {**dict(zip(CASE, case)), "against": rival}
                yield facts, pairs["softad"], pairs[rival]


def compare(chosen: pd.DataFrame, claim: Claim) -> pd.DataFrame:
    """Compare SoftAD with each rival, trial by trial: a line per dataset, label noise and rival.

    Args:
        chosen: the selected run of every method and trial, with `gap`.
        claim: which measure, against whom, on which side.

    Returns:
        `mean` with Student's 95 % interval; trials `above`, `equal` and `below` zero; exact two-sided p
        of the sign test and of the permutation test; `finds`: "yes" or "no" where the latter is at
        most 0.05, by the side that the mean is on, "open" elsewhere, "n < 6" where no p can be as small.
    """
    lines = []
    differences = []
    for facts, softad, rival in paired_trials(chosen, claim.measure, claim.against):
        difference = (softad - rival).to_numpy()
        mean, signs = paired(softad, rival), sign_test(difference)
        facts |= {"mean": mean.mean, "mean_low": mean.low, "mean_high": mean.high}
        facts |= {"above": signs.above, "equal": signs.equal, "below": signs.below}
        facts |= {"p sign": signs.p, "n": mean.n}
        facts["as claimed"] = bool(mean.mean < 0) == claim.below and mean.mean != 0
        lines.append(facts)
        differences.append(difference)
    for facts, p in zip(lines, permutation_tests(differences)):
        side = "yes" if facts["as claimed"] else "no"
        finds = side if p <= SIGNIFICANT else "open"
        facts |= {"p": p, "finds": finds if facts["n"] >= DECIDABLE else TOO_FEW}
    return pd.DataFrame(lines)


def comparisons(rows: pd.DataFrame, rules: Sequence[str] = tuple(tables.RULES)) -> pd.DataFrame:
    """Return `compare` of every claim under every rule of `results.select`: columns `claim`, `rule`.

    Raises MissingData where no dataset has ERM and SoftAD, or no trial a finite run of both.
    """
    tables.require(rows, "erm", "softad")
    found = []
    for rule in rules:
        chosen = results.select(rows, rule)
        found += [compare(chosen, c).assign(claim=c.name, rule=rule) for c in CLAIMS]
    found = [table for table in found if len(table)]
    if not found:
        raise MissingData(
            "no trial has a finite run of SoftAD and of another method; train both on one"
        )
    return pd.concat(found, ignore_index=True)


def findings(compared: pd.DataFrame) -> pd.DataFrame:
    """Count what the comparisons of each claim find: a line per claim and rule.

    `yes by Holm` counts those that support the claim after a correction over all that can decide. `n` is
    the smallest number of trials of these, "–" where there are none.
    """
    lines = []
    for (claim, rule), part in compared.groupby(["claim", "rule"], sort=False):
        line = {"claim": claim, "rule": rule}
        words = ("yes", "open", "no", TOO_FEW)
        line |= {word: int((part["finds"] == word).sum()) for word in words}
        deciding = part[part["n"] >= DECIDABLE]
        supported = (holm(deciding["p"]) <= SIGNIFICANT) & (deciding["finds"] == "yes")
        line["yes by Holm"] = int(supported.sum())
        lines.append(line | {"n": "–" if deciding.empty else str(deciding["n"].min())})
    order = [claim.name for claim in CLAIMS]
    return pd.DataFrame(lines).sort_values("claim", key=lambda c: c.map(order.index), kind="stable")


def compare_accuracy(chosen: pd.DataFrame, margin: float) -> pd.DataFrame:
    """Return test accuracy of SoftAD minus that of each rival, in points: a line per case and rival.

    `mean` with Student's 95 % interval over trials. `finds`: "comparable" where the interval lies
    above −margin, "lower" where it lies below −margin, else "open"; "n < 6" for fewer trials.
    """
    lines = []
    for facts, softad, rival in paired_trials(chosen, "acc_test", OTHERS):
        mean = paired(100 * softad, 100 * rival)
        finds = "comparable" if mean.low > -margin else "lower" if mean.high < -margin else "open"
        finds = finds if mean.n >= DECIDABLE else TOO_FEW
        ends = {"mean": mean.mean, "mean_low": mean.low, "mean_high": mean.high}
        lines.append({**facts, **ends, "finds": finds, "n": mean.n})
    return pd.DataFrame(lines)
