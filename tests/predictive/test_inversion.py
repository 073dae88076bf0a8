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
    # The ends coincide.
    law = stats.norm(3.0, 0.5)
    ends = law.ppf(LEVELS)[None]
    found = inversion.real_quantiles(cdf_of(lambda rows: law), ends, ends, LEVELS)
    np.testing.assert_allclose(found, ends, rtol=1e-8)


def component(law, levels, integer=False):
    """A part of a mixture, between whose quantiles the mixture's are."""
    ends = law.ppf(levels)[None]
    return inversion.Component(cdf_of(lambda rows: law), ends - integer, ends)


def test_mixtures_are_between_their_parts():
    """Counts by summed masses; tails of reals of both kinds, to rounding."""
    rates, weights, levels = np.array([2.0, 90.0]), np.array([0.4, 0.6]), np.array([0.2, 0.5, 0.9])
    parts = [component(stats.poisson(r), levels, integer=True) for r in rates]
    found = inversion.mixture_quantiles(parts, weights, levels, True)[0]
    mass = np.cumsum(weights @ stats.poisson.pmf(np.arange(300), rates[:, None]))
    np.testing.assert_array_equal(found, np.searchsorted(mass, levels))
    laws, q = [stats.norm(0.0, 1.0), stats.norm(2.0, 0.5)], np.array([1e-9, 0.5, 1.0 - 1e-9])
    parts = [component(law, q) for law in laws]
    found = inversion.mixture_quantiles(parts, weights, q, False)[0]
    below, above = (weights @ [getattr(law, k)(found) for law in laws] for k in ("cdf", "sf"))
    np.testing.assert_allclose(below[:2], q[:2], rtol=1e-9)
    np.testing.assert_allclose(above[2], 1.0 - q[2], rtol=1e-7)
