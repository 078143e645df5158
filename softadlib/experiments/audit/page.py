"""The tests of the paper's claims on a profile's rows, as a part of its README."""

import itertools
from collections.abc import Iterator

import pandas as pd

from softadlib._validation import UserError
from softadlib.analysis import coverage, markdown, paper
from softadlib.analysis.readings import DECIDABLE, RULES, bullets, listed, percent
from softadlib.experiments.audit import accuracy, claims, controls
from softadlib.results import reader
from softadlib.results.selection import TIES

MARGIN = 1.0
"""Points of accuracy that "comparable" may lose."""
FACTOR = 1.1
"""Of ERM's lowest test loss: the level that "converging" must reach."""
ACCURACY = "an accuracy at most 1 point lower"
HAS = {
    "knob": "a larger θ",
    "gap": "a smaller gap",
    "model_norm": "a smaller norm",
    "loss_test": "a smaller test loss",
}
LEGEND = f"""\
SoftAD is compared with each rival trial by trial, under both rules for ties in validation accuracy. *yes*: the exact
two-sided permutation test finds what the line says, at p ≤ .05 for this comparison alone. *no*: it finds the contrary.
*open*: it finds neither. For accuracy, *yes* and *no* mean that Student's 95 % interval lies above or below −1 point.
"Step matched" is ERM with its learning rate times the mean weight of SoftAD's run of the same trial. Under Adam that
shortens its steps by more than SoftAD does, so a *no* on the norm there decides nothing about SoftAD. A comparison
needs at least {DECIDABLE} trials."""


def findings(profile: str) -> pd.DataFrame:
    """Return what every comparison of a profile finds: has, against, ties, dataset, label_noise, finds, n.

    Raises UserError where no comparison has `DECIDABLE` trials.
    """
    rows, beside = reader.read(profile, final=True), controls.read(profile)
    tables = [pd.DataFrame(columns=["n"])]
    if len(rows):
        tested = claims.comparisons(rows, beside)
        tables.append(
            tested.assign(has=tested["claim"].map(lambda name: HAS[claims.CLAIMS[name].measure]))
        )
        for ties in TIES:
            chosen = claims.contenders(rows, beside, ties)
            compared = accuracy.compare_accuracy(chosen, MARGIN)
            if compared.empty:
                continue
            compared["finds"] = compared["finds"].replace({"comparable": "yes", "lower": "no"})
            tables.append(compared.assign(has=ACCURACY, ties=ties))
    outcomes = pd.concat([t for t in tables if len(t)] or tables, ignore_index=True)
    decidable = outcomes[outcomes["n"] >= DECIDABLE]
    if decidable.empty:
        raise UserError(
            f"no comparison in profile {profile!r} has {DECIDABLE} trials to be tested by"
        )
    return outcomes[outcomes["dataset"].isin(decidable["dataset"])]


def tests(profile: str) -> str:
    """Return sentences and a table of `findings`. Raises UserError as it does."""
    outcomes = findings(profile)
    stored = coverage.labels(reader.provenances(profile))
    left_out = [name for name in stored if name not in set(outcomes["dataset"])]
    words = " Where there are fewer, n is shown." if (outcomes["n"] < DECIDABLE).any() else ""
    words += (
        f" Left out, without {DECIDABLE} trials of SoftAD and a rival: {listed(left_out)}."
        if left_out
        else ""
    )
    lines = bullets([*_sentences(outcomes), *_speed(profile)])
    return f"{lines}\n\n{LEGEND}{words}\n\n{markdown.to_markdown(table(outcomes))}\n"


def _speed(profile: str) -> list[str]:
    """Say in how many cases SoftAD converges first; runs selected by the protocol's tie rule have curves."""
    rows = reader.read(profile)
    rules = {f.read_provenance().protocol.get("ties", "largest") for f in reader.finished(profile)}
    ties = "smallest" if rules == {"smallest"} else "largest"
    chosen = claims.contenders(rows, controls.read(profile), ties)
    epochs = accuracy.epochs_to_loss(rows, chosen, FACTOR)
    means = f"It has converged at {FACTOR:g} times the lowest test loss of ERM in the same trial."
    return [f"{line} {means}" for line in accuracy.readings(pd.DataFrame(), epochs, MARGIN)]


def table(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Lay `findings` out: a line per claim and rival, a column per dataset and tie rule."""
    noise = outcomes["label_noise"].map(
        lambda share: f", {percent(share)} flipped" if share else ""
    )
    cells = outcomes["finds"].where(outcomes["n"] >= DECIDABLE, "n = " + outcomes["n"].astype(str))
    rival = outcomes["against"].map(claims.label)
    whole = outcomes.assign(
        column=outcomes["dataset"] + noise + ", " + outcomes["ties"], cell=cells, rival=rival
    )
    datasets = paper.in_order(outcomes["dataset"])
    columns = [
        name
        for dataset in datasets
        for name in whole.loc[whole["dataset"] == dataset, "column"].drop_duplicates()
    ]
    wide = whole.pivot(index=["has", "rival"], columns="column", values="cell")[columns]
    rivals = map(claims.label, (*claims.PAPER, "iflood", claims.MATCHED))
    lines = itertools.product((*HAS.values(), ACCURACY), rivals)
    wide = wide.loc[[line for line in lines if line in wide.index]]
    return wide.fillna("–").reset_index().rename(columns={"has": "SoftAD has", "rival": "than"})


def _sentences(outcomes: pd.DataFrame) -> Iterator[str]:
    """Count the outcomes of each claim by tie rule, against other methods and ERM with a matched step."""
    decidable = outcomes[outcomes["n"] >= DECIDABLE]
    for ties, has in itertools.product(TIES, (*HAS.values(), ACCURACY)):
        part = decidable[(decidable["ties"] == ties) & (decidable["has"] == has)]
        matched = part["against"] == claims.MATCHED
        rivals = claims.label("flooding") if has == HAS["knob"] else "the other methods"
        sides = ((part[~matched], rivals), (part[matched], "ERM with a matched step"))
        for finds, who in ((side["finds"], who) for side, who in sides if len(side)):
            yes, no = ((finds == word).sum() for word in ("yes", "no"))
            yield (
                f"{RULES[ties]}: SoftAD has {has} than {who}: found in {yes} of {len(finds)} comparisons, "
                f"the contrary in {no}."
            )
