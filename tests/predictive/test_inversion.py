"""Searches for quantiles, beside SciPy's distributions."""

import numpy as np
from scipy import stats

from qpruntime.predictive import inversion

LEVELS = np.array([1e-12, 0.05, 0.5, 0.7, 1.0 - 1e-12])


def cdf_of(law):
    return lambda rows, y, upper: (law(rows).sf if upper else law(rows).cdf)(y)


def test_first_integers_end_at_the_least_that_suffices():
    least = np.array([0, 1, 77, 1024])
    found = inversion.first_integers(lambda i, y: y >= least[i], np.full(4, -1), np.full(4, 1024))
    np.testing.assert_array_equal(found, least)


def test_real_quantiles_keep_their_digits_in_both_tails():
    """Lower tails and upper tails to 1e-9 of the probability beyond."""
    scale = np.array([1e-3, 1.0, 1e6])

    def law(rows):
        return stats.gamma(2.0, scale=scale[rows])

    low = np.repeat(1e-9 * scale[:, None], 5, axis=1)
    high = np.repeat(100.0 * scale[:, None], 5, axis=1)
    found = inversion.real_quantiles(cdf_of(law), low, high, LEVELS, (np.log, np.exp))
    np.testing.assert_allclose(found, stats.gamma.ppf(LEVELS, 2.0) * scale[:, None], rtol=1e-8)


def test_real_quantiles_whose_ends_coincide():
    law = stats.norm(3.0, 0.5)
    ends = law.ppf(LEVELS)[None]
    found = inversion.real_quantiles(
        lambda _, y, upper: (law.sf if upper else law.cdf)(y), ends, ends, LEVELS
    )
    np.testing.assert_allclose(found, ends, rtol=1e-8)


def test_mixtures_of_counts_are_between_their_parts():
    rates, weights, levels = np.array([2.0, 90.0]), np.array([0.4, 0.6]), np.array([0.2, 0.5, 0.9])
    parts = [
        inversion.Component(
            lambda _, y, upper, r=r: (stats.poisson(r).sf if upper else stats.poisson(r).cdf)(y),
            stats.poisson.ppf(levels, r)[None] - 1.0,
            stats.poisson.ppf(levels, r)[None],
        )
        for r in rates
    ]
    found = inversion.mixture_quantiles(parts, weights, levels, True)[0]
    mass = np.cumsum(weights @ stats.poisson.pmf(np.arange(300), rates[:, None]))
    np.testing.assert_array_equal(found, np.searchsorted(mass, levels))
