"""Groups of rows: equal rows are found, and what rows left out say counts each group once."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF

from qpruntime import GPClassifier
from qpruntime.learning.inputs import RowGroups, equal_rows
from qpruntime.learning.model_selection.budget import gains_significantly, split_rows


def test_equal_rows_have_one_number():
    """As sorting whole rows finds them; 0 and -0 are equal, and so are missing values."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 4, (500, 3)).astype(float)
    X[X == 3.0] = np.nan
    X[::2][X[::2] == 0.0] = -0.0
    known = np.unique(np.where(np.isnan(X), 9.0, X + 0.0), axis=0, return_inverse=True)[1]
    pairs = np.unique(np.column_stack([equal_rows(X), known.ravel()]), axis=0)
    assert len(pairs) == known.max() + 1 == np.unique(equal_rows(X)).size == 64
    # Columns that change places make another row.
    assert equal_rows(np.array([[1.0, 2.0], [2.0, 1.0]])).tolist() in ([0, 1], [1, 0])


def test_rows_in_parts_have_the_same_groups():
    zarr = pytest.importorskip("zarr")
    X = np.random.default_rng(1).integers(0, 9, (300, 2)).astype(np.float32)
    lazy = zarr.array(X, chunks=(64, 2))
    np.testing.assert_array_equal(equal_rows(lazy), equal_rows(X))


def test_a_group_counts_once():
    """Rows three times have the mean and the standard error of rows once."""
    gain = np.random.default_rng(2).normal(0.1, 1.0, 200)
    three = RowGroups(None, np.tile(np.arange(200), 3))
    pooled = three.pooled(np.tile(gain, 3))
    np.testing.assert_allclose(pooled, gain, rtol=1e-12)
    assert gains_significantly(np.tile(gain, 3), 1.6)
    assert not gains_significantly(pooled, 1.6)
    some = np.array([5, 205, 7])
    expected = np.array([2.0 * gain[5], gain[7]]) * 2 / 3
    np.testing.assert_allclose(three.pooled(np.tile(gain, 3)[some], some), expected)


@pytest.mark.parametrize("classes", [False, True])
def test_judges_share_no_group_with_what_is_learnt(classes):
    rng = np.random.default_rng(3)
    groups = rng.permutation(np.repeat(np.arange(400), 7))
    strata = (groups % 3 == 0).astype(float) if classes else None
    subsets = split_rows(2800, strata, rng, groups=groups)
    order, judged = subsets.order, subsets.holdout
    learnt = order[: max(rung for rung in subsets.rungs if rung <= judged.start)]
    assert subsets.has_holdout
    assert judged.stop - judged.start > 1000
    assert np.intersect1d(groups[learnt], groups[order[judged]]).size == 0
    assert np.unique(order).size == order.size
    # Rows that lack their one number share few groups: 210 of 3000 rows in six groups here.
    groups = np.concatenate([np.arange(2790), np.repeat(np.arange(2790, 2796), 35)])
    strata = (groups % 3 == 0).astype(float) if classes else None
    for seed in range(20):
        subsets = split_rows(3000, strata, np.random.default_rng(seed), groups=groups)
        for rung in subsets.rungs:
            large = np.sum(groups[subsets.order[:rung]] >= 2790)
            # A group more or less, of each class.
            assert abs(large - 210 * rung / 3000) <= 35 * (1 + classes)


def test_loo_of_copies_is_warned_of():
    rng = np.random.default_rng(6)
    X, y = np.tile(rng.normal(size=(15, 2)), (2, 1)), np.tile(rng.integers(0, 2, 15), 2)
    with pytest.warns(UserWarning, match="15 of 30 rows have a copy in their group"):
        GPClassifier(RBF(1.0), optimize="loo").fit(X, y)
    GPClassifier(RBF(1.0), optimize="loo").fit(X[:15], y[:15])
