"""The register is whole and points at what exists; its arithmetic, by hand."""

import math
import re
import statistics

import numpy as np
import pytest
from helpers.workspace import REPOSITORY
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from softadlib.experiments import discrepancies as D

ROWS = D.register()


def test_the_register_is_whole():
    assert list(ROWS.index) == list(range(1, 33))
    assert not ROWS.isna().any(axis=None)
    assert set(ROWS["part"]) == set(D.PARTS)
    assert set(ROWS["basis"]) == set(D.BASES)


@pytest.mark.parametrize("number", ROWS.index)
def test_where_it_is_shown_exists(number):
    assert (REPOSITORY / ROWS.loc[number, "where"]).is_file()


def test_markdown_holds_every_row():
    lines = D.as_markdown(ROWS).splitlines()
    assert len(lines) == 2 + 32
    assert lines[10].startswith("| 9 | 5 % noise |")
    bars = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    assert bars == {7}, "a bar within a cell is escaped"


def test_summary_reports_what_a_check_found():
    table = D.summary({1: True, 2: np.False_})
    assert table["check"].loc[[1, 2, 3]].tolist() == ["confirmed", "NOT CONFIRMED", "–"]


class TestGridSamples:
    def test_by_hand(self):
        # mean of 0.01 ×4 and 0.12 is 0.032; squared deviations 4·0.022² + 0.088², over 4: 0.0492²
        assert D.grid_samples([0.01, 0.12], 5, 0.03, 0.05) == [(0.01, 0.01, 0.01, 0.01, 0.12)]
        assert D.grid_samples([0.01, 0.12], 5, 0.03, 0.06) == []
        assert D.grid_samples([0.5], 3, 0.5, 0.0) == [(0.5, 0.5, 0.5)]

    @given(st.lists(st.sampled_from([0.01, 0.02, 0.05, 0.1, 0.2, 0.5]), min_size=2, max_size=5))
    def test_what_was_drawn_is_found(self, values):
        mean, sd = (round(f(values), 2) for f in (statistics.mean, statistics.stdev))
        found = D.grid_samples([0.01, 0.02, 0.05, 0.1, 0.2, 0.5], len(values), mean, sd)
        assert tuple(sorted(values)) in found

    def test_sam_needs_five_trials(self):
        cells, grid = [(0.36, 0.19), (0.32, 0.16), (0.28, 0.20)], [0.01, 0.02, 0.05, 0.1, 0.2, 0.5]
        table = D.samples_by_trials(cells, grid, range(2, 6))
        assert table[[2, 3, 4]].to_numpy().sum() == 0
        assert table[5].tolist() == [1, 1, 1]
        assert table.index[0] == "0.36 (0.19)"


def test_flips():
    assert D.flip_count(100, 0.05) == 4  # int(50·0.05) = 2 per class
    assert D.flip_count(200, 0.05) == 10
    assert D.flip_count(100, 0.0) == 0


def test_batch_norm_undoes_a_factor_of_the_inputs():
    assert 0 < D.rescaled_gradient(255.0) < 1e-3
    assert D.rescaled_gradient(1.0) == 0


def test_norm_shares_by_hand():
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    network[0].weight.data.fill_(2.0)
    network[0].bias.data.fill_(3.0)
    assert D.norm_shares(network).tolist() == [24, 3, 27]


def test_weights_by_hand():
    table = D.weights([0.0, 1.25], 0.5, 0.25)  # (ℓ − θ)/σ = −2 and 3
    assert table["SoftAD, text, σ = 0.25"].tolist() == pytest.approx([-2 / 5**0.5, 3 / 10**0.5])
    assert table["SoftAD, code, σ = 0.25"].tolist() == pytest.approx(
        [-0.5 / 5**0.5, 0.75 / 10**0.5]
    )
    assert table["SoftAD, code, σ = 1"].tolist() == pytest.approx([-0.5 / 1.25**0.5, 0.6])
    assert table["iFlood"].tolist() == table["Flooding"].tolist() == [-1, 1]
    assert table["|ℓ − θ|"].tolist() == [0.5, 0.75]


def test_the_numbers_of_the_theory():
    two_step, sam, first, second, third = D.theory_numbers()
    assert two_step == pytest.approx(1, abs=0.01)
    assert sam > 0.01
    assert first == pytest.approx(1.985)
    assert second == pytest.approx(math.sqrt(2), abs=1e-3)
    assert third == 1


def test_ties_and_adam():
    assert D.tie_example() == {"largest": 0.57, "smallest": 0.06}
    assert D.adam_betas() == (0.9, 0.999)
