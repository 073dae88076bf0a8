"""Leave-one-out and leave-group-out densities, and PIT values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, softmax
from sklearn.utils.validation import check_is_fitted

from qpruntime._typing import Array
from qpruntime._validation import generator as generator_of
from qpruntime.effects.families import below, below_given, discrete
from qpruntime.effects.state import EffectsState
from qpruntime.errors import InputError
from qpruntime.execution.threads import alone
from qpruntime.predictive.density import log_density, wide

__all__ = ["LeftOut"]

#: Nodes at which rows are told apart that are one site.
_X, _W = hermegauss(64)
_LOG_W = np.log(_W / np.sqrt(2.0 * np.pi))


class LeftOut:
    """Methods of a fitted `EffectsModel`."""

    state_: EffectsState

    def loo(self) -> Array:
        """Leave-one-out log densities of the rows of the fit, shape (N,), of its kept rows.

        If hyper-parameters are integrated, 1/p(y_n | others) is the mean of 1/p(y_n | others,
        theta).
        """
        check_is_fitted(self, "state_")
        return _harmonic(np.array(self.state_.log_z), self.state_.nodes.weights)

    @alone
    def loo_groups(self, groups: ArrayLike) -> tuple[NDArray[Any], Array]:
        """Leave-one-group-out log densities: all observations of a group, from all other rows.

        This measures how well the model predicts a clinic, a year or a region that it has not seen.

        Parameters
        ----------
        groups : array-like, shape (N,)
            Group of every row of the fit that was kept.

        Returns
        -------
        groups, densities : ndarray, shape (G,)
            Groups in ascending order, and the joint log density of the observations of each, with
            hyper-parameters integrated as in `loo`.

        Raises
        ------
        InputError
            If `groups` has another shape, or rows that are equal are of several groups.
        """
        check_is_fitted(self, "state_")
        state = self.state_
        objective, densities = state.objective(), []
        names: NDArray[Any] = np.empty(0)
        for theta, sites in zip(state.nodes.theta, state.sites, strict=True):
            names, group_densities = objective.posterior(theta, sites=sites).loo_groups(groups)
            rows = np.unique(np.asarray(groups), return_counts=True)[1]
            densities.append(group_densities - rows * state.family.log_unit)
        return names, _harmonic(np.array(densities), state.nodes.weights)

    @alone
    def pit(self, random_state: int | np.random.Generator | None = None) -> Array:
        """Return the place of each observation in its leave-one-out distribution, shape (N,).

        ``P(Y_n <= y_n | others)``, with hyper-parameters integrated: uniform if the model is right.
        A hump says that its intervals are too wide, a valley too narrow, a slope a bias. The
        value of labels, successes and counts is drawn between ``P(Y_n < y_n)`` and ``P(Y_n <=
        y_n)``, which makes it uniform as well (Czado, Gneiting & Held 2009).

        Parameters
        ----------
        random_state : int, Generator or None
            For what is drawn.

        Returns
        -------
        ndarray, shape (N,)
            Of the kept rows.

        Raises
        ------
        InputError
            If the likelihood is known by its density alone.
        """
        check_is_fitted(self, "state_")
        state = self.state_
        generator = generator_of(random_state)
        ends = np.array([_ends(state, k) for k in range(state.count)])
        # Nodes are weighted by how likely they are without the row.
        logs = np.log(state.nodes.weights)[:, None] - np.array(state.log_z)
        shares = softmax(logs, axis=0)
        low, high = (shares[:, None] * ends).sum(axis=0)
        if not discrete(state.family, state.likelihood(0)):
            return np.asarray(high)
        return np.asarray(low + generator.uniform(size=high.size) * (high - low))


def _harmonic(logs: Array, weights: Array) -> Array:
    """Logarithms of 1 over the weighted means of 1/p, for log p (J, N)."""
    return -np.asarray(logsumexp(-logs, axis=0, b=weights[:, None]))


def _ends(state: EffectsState, k: int) -> Array:
    """P(Y < y) and P(Y <= y) of every row at a node, (2, N); of densities both are the latter."""
    family, likelihood = state.family, state.inner_likelihood(k)
    y, trials = state.y, None
    if family.kind == "pairs":
        y, trials = state.y[:, 0], state.y[:, 1]
    before = y - (2.0 if family.kind == "labels" else 1.0)
    mean, variance = state.node(k).moments()
    tau, nu = state.sites[k]
    # Rows that share a site have equal parts of it.
    kept = 1.0 - tau * variance
    if not (kept > 0.0).all():
        row = int(np.argmin(kept))
        raise InputError(f"row {row} has no cavity: it alone tells a part of the effects")
    centre, spread = mean - variance * (nu - tau * mean) / kept, variance / kept
    values = (before, y) if discrete(family, likelihood) else (y,)
    ends = np.array([below(family, likelihood, centre, spread, at, trials) for at in values])
    site = state.site
    if site is not None:
        several = np.flatnonzero(np.bincount(site)[site] > 1)
        if several.size:
            moments = centre, spread, mean, variance
            weights = _weights_of_rows(state, site, k, several, moments)
            f = _points(site, several, centre, spread)
            for end, at in zip(ends, values, strict=True):
                own_trials = None if trials is None else trials[several]
                own_below = below_given(family, likelihood, f, at[several], own_trials)
                end[several] = (weights * own_below).sum(axis=1)
    return np.concatenate([ends, ends])[:2] if len(ends) == 1 else ends


def _points(site: NDArray[np.int32], rows: NDArray[np.intp], centre: Array, spread: Array) -> Array:
    """Latent values (n, M) of these rows: those of rows of one site are the same."""
    first = np.zeros(int(site.max()) + 1, dtype=np.int64)
    first[site[rows][::-1]] = rows[::-1]
    at = first[site[rows]]
    return np.asarray(centre[at, None] + np.sqrt(spread[at, None]) * _X)


def _weights_of_rows(
    state: EffectsState,
    site: NDArray[np.int32],
    k: int,
    rows: NDArray[np.intp],
    moments: tuple[Array, Array, Array, Array],
) -> Array:
    """Weights (n, M) of the points: the site's cavity times all its rows but the own one."""
    centre, spread, mean, variance = moments
    fitted, (tau, nu) = state.inner_likelihood(k), state.sites[k]
    f = _points(site, rows, centre, spread)
    likelihood, numbers = fitted.observing(state.y)
    powers = np.ones(len(site)) if state.weights is None else state.weights
    log_likelihood = powers[rows, None] * log_density(
        likelihood, f, wide(np.zeros(f.shape)), np.broadcast_to(numbers[rows, None], f.shape)
    )
    codes = np.unique(site[rows], return_inverse=True)[1]
    sums = np.zeros((int(codes.max()) + 1, f.shape[1]))
    np.add.at(sums, codes, log_likelihood)
    whole_tau, whole_nu = (np.bincount(site, part)[site][rows] for part in (tau, nu))
    kept = 1.0 - whole_tau * variance[rows]
    pull = whole_nu - whole_tau * mean[rows]
    m, v = mean[rows] - variance[rows] * pull / kept, variance[rows] / kept
    logs = sums[codes] - log_likelihood - 0.5 * (f - m[:, None]) ** 2 / v[:, None]
    return np.asarray(softmax(logs + 0.5 * _X**2 + _LOG_W, axis=1))
