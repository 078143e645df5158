"""The paper's claims against stored rows: paired over trials, under both tie rules, with a verdict and its n."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from softadlib._validation import UserError
from softadlib.analysis.readings import DECIDABLE, listed, percent, span
from softadlib.analysis.statistics import paired, permutation_test, sign_test
from softadlib.methods import METHODS
from softadlib.results.selection import CASE, TIES, final, select

REPLAY, BY_LR, BY_LOSS = "watched", "lr", "loss"
"""Kinds of control: the run itself, ERM with lr × factor, ERM with loss × factor."""
MATCHED = "erm × |φ|"
"""ERM with lr × mean |φ| of the selected SoftAD run of the same trial."""
PAPER = ("erm", "flooding", "sam")
"""The methods that the paper's claims compare SoftAD with; its appendix adds iFlood."""
OTHERS = (*PAPER[:2], "iflood", *PAPER[2:])
KEY = ["claim", "ties", "label_noise"]
LEVEL = 0.05
VERDICTS = ("holds", "fails", "not shown", "not decidable")


@dataclass(frozen=True)
class Claim:
    """SoftAD's `measure` is below (or above) that of each of `against`, on every dataset."""

    name: str
    measure: str
    below: bool
    against: tuple[str, ...]


def _claims() -> Iterator[Claim]:
    yield Claim("larger θ", "knob", False, ("flooding",))
    for name, measure in (("gap", "gap"), ("norm", "model_norm"), ("test loss", "loss_test")):
        yield Claim(f"smallest {name}", measure, True, PAPER)
        yield Claim(f"smaller {name} than iFlood", measure, True, ("iflood",))
        yield Claim(f"smaller {name} at a matched step", measure, True, (MATCHED,))


CLAIMS = {claim.name: claim for claim in _claims()}
"""The paper's claims on θ, gap and norm, and the same of test loss; each also against iFlood and `MATCHED`."""


def label(method: str) -> str:
    """Return the label of a method, or of `MATCHED`, in tables and figures."""
    return METHODS[method].label if method in METHODS else "ERM, step matched"


def contenders(rows: pd.DataFrame, controls: pd.DataFrame, ties: str) -> pd.DataFrame:
    """Return the selected run of every method and trial, with `gap`; SoftAD's control is method `MATCHED`."""
    chosen = select(rows, ties)
    soft = chosen.loc[chosen["method"] == "softad", [*CASE, "trial", "knob"]]
    runs = chosen
    if len(soft) and len(controls):
        matched = controls[controls["control"] == BY_LR].merge(soft, on=list(soft.columns))
        runs = pd.concat([chosen, matched.assign(method=MATCHED)])
    return runs.assign(gap=runs["loss_test"] - runs["loss_train"]).reset_index(drop=True)


def compare(chosen: pd.DataFrame, claim: Claim, seed: int = 0) -> pd.DataFrame:
    """Compare SoftAD with each rival, trial by trial: a line per dataset, label noise and rival.

    `mean` with Student's 95 % interval `low`, `high` (infinite for one trial); trials `above`, `equal`,
    `below` zero; exact two-sided p of the sign test and of the permutation test; `finds`: "yes" or
    "no" where the latter is at most 0.05, by the side the mean is on, "open" elsewhere; `n` trials.
    """
    lines = []
    for facts, softad, rival in paired_trials(chosen, claim.measure, claim.against):
        d = (softad - rival).to_numpy()
        low, high = paired(softad, rival)[1:3]
        p = permutation_test(d, seed=seed)
        signs = sign_test(d)
        with_it = d.mean() < 0 if claim.below else d.mean() > 0
        finds = ("yes" if with_it else "no") if p <= LEVEL else "open"
        facts |= {"mean": d.mean(), "low": low, "high": high}
        facts |= {"above": signs.above, "equal": signs.equal, "below": signs.below}
        facts |= {"p sign": signs.p, "p perm": p, "as claimed": with_it, "finds": finds}
        lines.append({**facts, "n": len(d)})
    return pd.DataFrame(lines)


def paired_trials(
    chosen: pd.DataFrame, measure: str, rivals: Sequence[str]
) -> Iterator[tuple[dict[str, Any], pd.Series, pd.Series]]:
    """Yield SoftAD's values and a rival's over the trials that have both, with case and rival."""
    for case, part in chosen.groupby(CASE, sort=False):
        wide = part.pivot(index="trial", columns="method", values=measure)
        for rival in rivals:
            if {"softad", rival} <= set(wide):
                pairs = wide[["softad", rival]].dropna()
                if len(pairs):
                    facts = {**dict(zip(CASE, case)), "against": rival}
                    yield facts, pairs["softad"], pairs[rival]


def holm(p: object) -> np.ndarray:
    """Return Holm's adjusted p of m tests, (m,) → (m,).

    Rejecting where it is at most α rejects any true hypothesis with a chance of at most α.
    """
    p = np.asarray(p, dtype=float)
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted


def verdict(compared: pd.DataFrame) -> str:
    """Return the verdict on a claim about all rows of `compare`.

    "holds": every comparison finds "yes"; each has p ≤ 0.05, so all hold at that level.
    "fails": a comparison is against the claim, with p ≤ 0.05 after Holm's correction for all.
    "not decidable": too few trials for p ≤ 0.05, whatever their values. Else "not shown".
    """
    if compared.empty:
        return "no rows"
    against = (holm(compared["p perm"]) <= LEVEL) & ~compared["as claimed"]
    if against.any():
        return "fails"
    if (compared["finds"] == "yes").all():
        return "holds"
    return "not shown" if compared["n"].min() >= DECIDABLE else "not decidable"


def comparisons(
    rows: pd.DataFrame, controls: pd.DataFrame, claims: Mapping[str, Claim] = CLAIMS, seed: int = 0
) -> pd.DataFrame:
    """Return `compare` of every claim under both tie rules, with columns `claim` and `ties`."""
    tables = []
    for ties in TIES:
        chosen = contenders(rows, controls, ties)
        tables += [
            compare(chosen, c, seed).assign(claim=c.name, ties=ties) for c in claims.values()
        ]
    nonempty = [t for t in tables if len(t) and "n" in t]
    return pd.concat(nonempty, ignore_index=True) if nonempty else pd.DataFrame(columns=KEY)


def verdicts(compared: pd.DataFrame) -> pd.DataFrame:
    """Decide each claim: how many comparisons, what they find, the verdict, n.

    A line per claim, tie rule and label noise. `n` is that of the comparison with the fewest trials.
    Where only some comparisons have trials enough to be decided, `decidable` says what these find,
    and `decidable on` names their datasets. `contrary on` names those where a comparison finds "no".
    """
    lines = []
    for key, part in compared.groupby(KEY, sort=False):
        counts = {word: int((part["finds"] == word).sum()) for word in ("yes", "open", "no")}
        share = f"{part['as claimed'].sum()} of {len(part)}"
        facts = {"as claimed": share, "verdict": verdict(part), "n": int(part["n"].min())}
        contrary = part.loc[part["finds"] == "no", "dataset"].unique()
        facts["contrary on"] = listed(contrary) if len(contrary) else ""
        lines.append({**dict(zip(KEY, key)), **counts, **facts, **_decidable(part)})
    order = {name: i for i, name in enumerate(CLAIMS)}
    table = pd.DataFrame(lines, columns=None if lines else KEY)
    by = table["claim"].map(lambda name: order.get(name, len(order)))
    return table.loc[by.sort_values(kind="stable").index].reset_index(drop=True)


def _decidable(part: pd.DataFrame) -> dict[str, str]:
    """Return what the comparisons with `DECIDABLE` trials find; empty where all or none have as many."""
    decidable = part[part["n"] >= DECIDABLE]
    if len(decidable) in (0, len(part)):
        return {"decidable": "", "decidable on": ""}
    yes, no = ((decidable["finds"] == word).sum() for word in ("yes", "no"))
    counts = f"{yes} found and {no} contradicted of {len(decidable)}"
    return {"decidable": counts, "decidable on": listed(decidable["dataset"].unique())}


def scaling(rows: pd.DataFrame, controls: pd.DataFrame) -> pd.DataFrame:
    """Return mean |difference| of the model norm between ERM, ERM with loss × c and ERM with lr × c.

    c is mean |φ| of the SoftAD run beside; a line per dataset, with n, and c's mean.
    """
    ends = final(rows)
    erm = ends.loc[ends["method"] == "erm", [*CASE, "trial", "model_norm"]]
    key = [*CASE, "trial", "knob"]
    by = {c: controls[controls["control"] == c].set_index(key) for c in (BY_LR, BY_LOSS)}
    both = pd.DataFrame({c: t["model_norm"] for c, t in by.items()} | {"c": by[BY_LR]["factor"]})
    both = both.reset_index().merge(erm, on=[*CASE, "trial"])
    table = pd.DataFrame(
        {
            "dataset": both["dataset"],
            "c": both["c"],
            "loss × c − ERM": (both[BY_LOSS] - both["model_norm"]).abs(),
            "lr × c − ERM": (both[BY_LR] - both["model_norm"]).abs(),
            "loss × c − lr × c": (both[BY_LOSS] - both[BY_LR]).abs(),
        }
    )
    groups = table.groupby("dataset")
    return groups.mean().assign(n=groups.size())


def overhead(bench: Mapping[str, Any]) -> pd.DataFrame:
    """Return gradients and time of a step of SoftAD and its rivals, as `softad bench` measured them."""
    steps = pd.DataFrame(bench["methods"], columns=["method", "gradients", "step_s", "over_erm"])
    steps = steps.set_index("method")
    if "softad" not in steps.index:
        raise UserError(
            "this benchmark has no steps of softad; softad bench --json FILE makes them"
        )
    return steps.loc[[m for m in (*OTHERS, "softad") if m in steps.index]]


def readings(table: pd.DataFrame) -> list[str]:
    """Write a sentence per label noise and verdict of `verdicts`: the claims, by tie rule, and n."""
    sentences = []
    for noise, level in table.groupby("label_noise"):
        at = f"at {percent(noise)} flipped labels"
        for verdict in VERDICTS:
            part = level[level["verdict"] == verdict]
            if part.empty:
                continue
            n = span(sorted(part["n"]))
            on = " [contrary on " + part["contrary on"] + "]" if verdict == "fails" else ""
            claims = _by_claim(part.assign(words=part["as claimed"] + on), "words")
            sentences.append(f"**{verdict.capitalize()}** {at}, n = {n}: {claims}.")
        for datasets, part in level[level["decidable"] != ""].groupby("decidable on", sort=False):
            found = _by_claim(part, "decidable")
            sentences.append(
                f"Comparisons with n ≥ {DECIDABLE} {at}, on {datasets} alone: {found}."
            )
    return sentences


def _by_claim(part: pd.DataFrame, column: str) -> str:
    """Write every claim with the values of a column under the tie rules."""
    claims = []
    for claim, lines in part.groupby("claim", sort=False):
        rules = [f"{ties} {value}" for ties, value in zip(lines["ties"], lines[column])]
        claims.append(f"{claim} ({', '.join(rules)})")
    return "; ".join(claims)
