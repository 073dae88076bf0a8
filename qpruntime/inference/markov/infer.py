"""`infer_series`: check arguments, sweep until the sites settle, and return a SeriesPosterior."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime._validation import no_kernel, number, real, unmasked
from qpruntime.errors import InputError
from qpruntime.execution.threads import alone
from qpruntime.inference.fixed_point.convergence import (
    DEFAULT_MAX_SWEEPS,
    DEFAULT_TOL,
    Limits,
    warn_unsettled,
)
from qpruntime.inference.markov.data import Clock, SortedSeries
from qpruntime.inference.markov.posterior import SeriesPosterior
from qpruntime.inference.markov.solution import Placed, concluded
from qpruntime.inference.problem import check_mean, check_powers, check_sites
from qpruntime.inference.sites import Sites
from qpruntime.kernels.state_space import StateSpace, approximates, state_space
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import Inference, Projector
from qpruntime.projection.table import Table

__all__ = ["infer_series"]

#: DotProduct has its pivot at time 0. This many spans away from it, slopes become differences of
#: equally large numbers.
_FARTHEST = 1e6


@alone
def infer_series(
    t: ArrayLike,
    y: ArrayLike,
    kernel: Kernel,
    likelihood: str | Likelihood | None = None,
    method: Inference = "qp",
    table: Table | str | os.PathLike[str] | None = None,
    mean: ArrayLike = 0.0,
    *,
    weights: ArrayLike | None = None,
    power: float = 1.0,
    tol: float = DEFAULT_TOL,
    max_sweeps: int = DEFAULT_MAX_SWEEPS,
    damping: float = 1.0,
    sites: Sites | Sequence[ArrayLike] | None = None,
    approximate: float | None = None,
) -> SeriesPosterior:
    """Approximate the posterior of a Gaussian process of one input by EP or QP, in O(N).

    The kernel must be that of a Markov process. Time and memory are then proportional to N, and the
    fixed point is that of `infer` with ``kernel(t[:, None])``.

    Parameters
    ----------
    t : array-like, shape (N,)
        Times, in any order and unit, repeated or not; or dates (``datetime64``), which are
        converted to seconds.
    y : array-like, shape (N,)
        Observations; rows of NaN are dropped.
    kernel : scikit-learn kernel
        Sums and products of ``Matern`` (nu 0.5, 1.5, 2.5), ``ExpSineSquared``, ``ConstantKernel``
        and ``WhiteKernel``; ``DotProduct`` alone or times a constant.
    likelihood, method, table
        As for `infer`; methods are "ep", "qp", and "wp" with p = 2 or the p of a table.
    mean : float or array-like, shape (N,)
        Prior mean.
    weights, power, damping, sites
        As for `infer`; sites are those of the observed rows.
    tol : float
        Tolerance: sweeps stop when the root mean squared change of the sites in a pass is below it,
        both plain and in posterior standard deviations.
    max_sweeps : int
        Largest number of sweeps, each a forward and a backward pass. If likelihoods are not
        log-concave, as many follow with more damping, and again with precisions held at zero.
    approximate : float, optional
        Replace squared exponentials, ``RBF``, by processes with 4, 6 or 8 states, whose covariances
        are off by 2.3e-3, 1.9e-4 and 1.3e-5 of the variance. The smallest with at most this error
        is taken, and `kernel_error` of the posterior is its error. By default such kernels are
        refused.

    Returns
    -------
    SeriesPosterior

    Raises
    ------
    InputError
        If an argument is not usable. The subclass `NotMarkov` names the part of a kernel without a
        state space.
    NumericalError
        If double precision does not suffice.

    Warns
    -----
    ConvergenceWarning
        If the sites have not settled, or settled only with precisions held at zero.

    See Also
    --------
    qpruntime.SeriesPosterior, qpruntime.infer, qpruntime.Series

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import Matern
    >>> from qpruntime import infer_series
    >>> t = np.linspace(0.0, 10.0, 200)
    >>> post = infer_series(t, np.sign(np.sin(t + 0.1)), 4.0 * Matern(1.0, nu=1.5))
    >>> mean, variance = post.predict([2.5, 5.5, 100.0])
    >>> np.sign(mean[:2]).tolist(), round(float(variance[2]), 6)
    ([1.0, -1.0], 4.0)
    """
    projector = Projector(likelihood, method, table)
    if projector.method == "vb":
        raise InputError('method "vb" is for the dense solver: infer(kernel(t[:, None]), ...)')
    if not isinstance(kernel, Kernel):
        raise no_kernel(kernel)
    if approximate is not None:
        approximate = number(approximate, "approximate", above=0.0, most=1.0)
        if not approximates(kernel):
            raise InputError(
                f"approximate={approximate:g} cannot act: there is no squared exponential, RBF, in "
                "the kernel; leave it out"
            )
    space = state_space(kernel, approximate)
    clock = Clock.of(t)
    times = clock.read(t)
    n = times.size
    if n == 0:
        raise InputError("the series is empty: t has no times")
    y = unmasked(y, "y", missing=True)
    observations = np.asarray(y)
    observed = np.ones(n, dtype=bool)
    if observations.shape == (n,):
        with np.errstate(all="ignore"):
            observed = ~np.isnan(real(y, "y"))
        observations = observations[observed]
        if not observed.any():
            raise InputError("y is NaN everywhere: there is nothing to infer from")
    projector, events = projector.observing(observations)
    if events.shape != (int(observed.sum()),):
        raise InputError(f"y must have shape ({n},) like t, got {np.asarray(y).shape}")
    projector.check_outcomes(events)
    prior = check_mean(mean, (n,))
    power, weighed = check_powers(power, weights, projector, n)
    limits = Limits.checked(tol, max_sweeps, damping)
    chosen = np.flatnonzero(observed)
    order = np.argsort(times[chosen], kind="stable")
    rows = chosen[order]
    series = SortedSeries(
        times[rows],
        np.ascontiguousarray(events[order]),
        projector,
        np.array(np.broadcast_to(prior, (n,))[rows]),
        None if weighed is None else weighed[rows],
        power=power,
    )
    check_times(space, series.t)
    start = check_sites(sites, chosen.size, series.nonnegative)
    if start is not None:
        start = Sites(start.tau[order], start.nu[order])
    placed = Placed(clock, order, chosen, n)
    del times, observations, observed, events, rows, prior, weighed  # 50 bytes a point
    outcome, solution = concluded(kernel, space, series, limits, start, placed)
    post = SeriesPosterior._of(outcome, solution, swept=outcome.n)
    warn_unsettled(post, limits.tol, post.n)
    return post


def check_times(space: StateSpace, t: Array) -> None:
    """Raise `InputError` if times are too far from the pivot of a linear trend."""
    span = float(t[-1] - t[0])
    reach = max(abs(float(t[0])), abs(float(t[-1])))
    if space.has_line and reach > _FARTHEST * max(span, 1e-300) and t.size > 1:
        raise InputError(
            f"DotProduct counts from time 0, and the times are {reach:g} away from it with a span "
            f"of {span:g}: subtract their mean from t"
        )
