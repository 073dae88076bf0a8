"""Whether counts vary more than Poisson ones: looked at, then judged by evidence.

A Gaussian process that is told that counts are Poisson explains whatever else varies by a rough
rate: its length-scale shrinks until no row tells anything about another one. Before a fit some
rows are compared with their nearest neighbours; where these differ by more than Poisson counts do,
by the rate or by their noise, both likelihoods are fitted to some rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from qpruntime.arrays import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.estimators.predictive.links import COUNTS, DISPERSED
from qpruntime.kernels.units import Units
from qpruntime.learning.data import Data
from qpruntime.learning.default_kernel import Start, default_start
from qpruntime.learning.inducing import rows_at, sample
from qpruntime.learning.maximise import Optimum
from qpruntime.learning.runs import optimise
from qpruntime.learning.settings import Settings
from qpruntime.learning.solvers import solvers
from qpruntime.likelihoods import get
from qpruntime.projection.projector import Projector
from qpruntime.validation import number, shown

__all__ = ["BOUNDS", "Noise", "asked", "judged"]

#: Between what a dispersion is learnt. The lower end has counts with a million of zeros for every
#: other; at the upper one a count of 1000 is Poisson but for .05 % of its variance.
BOUNDS = (1e-2, 1e6)
# Rows that are fitted to, and among how many their neighbours are.
_ROWS, _POOL = 500, 5000
# Standard deviations that neighbours differ by beyond Poisson counts.
_ODD = 3.0
# By what the log evidence has to be higher: strong evidence, and the price of a parameter.
_BETTER = 3.0
# The judges' fits end early.
_EARLY, _STEPS = 1e-5, 50
_SEED = 0


@dataclass(frozen=True)
class Noise:
    """Link and dispersion of counts, and where a fit may begin.

    `dispersion` is infinite for Poisson counts; `learnt` says that it is only where a fit begins.
    `theta` has log parameters of the default kernel, in units of the features' spread.
    """

    link: str
    dispersion: float = math.inf
    learnt: bool = False
    theta: Array | None = None

    @property
    def spelt(self) -> str:
        """Name of the likelihood, with its dispersion."""
        if self.dispersion == math.inf:
            return COUNTS[self.link].name
        return get(DISPERSED[self.link], dispersion=self.dispersion).spelt


def asked(link: str, dispersion: Any, settled: bool, units: bool) -> Noise | None:
    """Return what parameters of an estimator say; None if the data are to say it.

    Parameters
    ----------
    link : str
        Of `LINKS`, or "auto".
    dispersion : float or "auto"
    settled : bool
        Whether nothing is learnt, or a table is given: then counts are Poisson.
    units : bool
        Whether the kernel or the prior mean are given, in units of a certain f.

    Raises
    ------
    InputError
        If the dispersion is no positive number and not "auto", or the link has none.
    """
    default = "square" if link == "auto" else link
    if isinstance(dispersion, str) and dispersion == "auto":
        open_ = link in DISPERSED or (link == "auto" and not units)
        return None if open_ and not settled else Noise(default)
    try:
        value = float(dispersion)
    except (TypeError, ValueError):
        value = math.nan
    if value == math.inf:
        return Noise(default)
    if math.isnan(value):
        raise InputError(f"dispersion must be a positive number or 'auto', got {shown(dispersion)}")
    name = DISPERSED.get("exp" if link == "auto" else link)
    if name is None:
        raise InputError(
            f"link {link!r} has Poisson counts only: dispersion={value:g} needs link='exp'"
        )
    low, high = get(name).limits["dispersion"]
    number(value, "dispersion", above=0.0)
    if not low <= value <= high:
        raise InputError(f"dispersion must be from {low:g} to {high:g} or inf, got {value:g}")
    return Noise("exp" if link == "auto" else link, value)


def judged(
    link: str,
    mean: float,
    X: Any,
    y: Array,
    exposure: Array,
    weights: Array | None,
    settings: Settings,
    method: str,
    levels: Sequence[int] = (),
) -> Noise:
    """Return the noise that the data have: Poisson, or negative binomial if its evidence is higher.

    Parameters
    ----------
    link : str
        What Poisson counts are to have: one of `DISPERSED`, or "auto".
    mean : float
        Prior mean of log rates.
    X : array-like, shape (N, d)
    y, exposure : ndarray, shape (N,)
    weights : ndarray, shape (N,), or None
    settings : Settings
    method : str
        That of the fit; "vb" is judged by its own bound.
    levels : sequence of int
        Columns of X that are codes of levels.
    """
    poisson = Noise("square" if link == "auto" else link)
    rng = np.random.default_rng(_SEED)
    pool = sample(len(y), _POOL, rng)
    points, counts, exposed = rows_at(X, pool), y[pool], exposure[pool]
    units = Units.of(points, None if weights is None else weights[pool], levels)
    excess = _excess(units.scaled(points), counts, exposed, rng)
    if excess is None:
        return poisson
    some = sample(len(pool), _ROWS, rng)
    shares = None if weights is None else weights[pool][some]
    begin = _begin(points[some], units, settings)
    inputs = points[some] if settings.given else units.scaled(points[some])
    data = Data(
        inputs,
        counts[some],
        Projector("poisson-exp", method if method == "vb" else "ep"),
        mean + np.log(exposed[some]),
        shares,
    )
    own = replace(
        settings,
        solver="dense",
        n_restarts=0,
        ftol=max(settings.ftol, _EARLY),
        max_iter=min(settings.max_iter, _STEPS),
        n_jobs=None,
        verbose=0,
        callback=None,
        scheduler=None,
        sparse=None,
    )
    start = float(np.clip(excess, BOUNDS[0], 1e-3 * BOUNDS[1]))
    noisy = get(DISPERSED["exp"], dispersion=start)
    wide = replace(
        data, projector=Projector(noisy, data.projector.method), learn={"dispersion": BOUNDS}
    )
    try:
        first = _best(wide, begin, own)
        kernel = first.theta[:-1]
        narrow = _best(data, replace(begin, thetas=(kernel, *begin.thetas)), own)
    except NumericalError as error:
        if error.__cause__ is not None:  # a user's own exception
            raise
        return poisson
    if not first.value > narrow.value + _BETTER:
        return poisson
    return Noise("exp", float(np.exp(first.theta[-1])), True, None if settings.given else kernel)


def _begin(X: Array, units: Units, settings: Settings) -> Start:
    """Where the judges' fits begin: with one length-scale, of the first kernel that there is."""
    if settings.given:
        return Start(settings.kernel)
    return replace(default_start(units), by_feature=0)


def _best(data: Data, begin: Start, settings: Settings) -> Optimum:
    solver = solvers(data, begin.kernel, settings)(begin.kernel)
    return optimise(data, begin, settings, np.random.default_rng(_SEED), None, solver)[0][0]


def _excess(X: Array, y: Array, exposure: Array, rng: np.random.Generator) -> float | None:
    """Compare some counts with those of their nearest rows; None if they differ as Poisson ones do.

    Given their sum two Poisson counts of one rate are binomial. Where they differ by more than that
    allows, return the dispersion that it would take: an estimate from below, for rates differ too.
    """
    n = len(y)
    if n < 2:
        return None
    rows = rng.permutation(n)[:_ROWS]
    distance = cdist(X[rows], X)
    # Of equally near rows any.
    distance += 1e-9 * (distance.max() or 1.0) * rng.random(distance.shape)
    distance[np.arange(len(rows)), rows] = np.inf
    near = distance.argmin(axis=1)
    pairs = np.unique(np.sort(np.column_stack([rows, near]), axis=1), axis=0)
    (one, other), (a, b) = y[pairs].T, exposure[pairs].T
    share, both = a / (a + b), one + other
    mass = share * (1.0 - share)
    expected = both * mass
    square = (one - share * both) ** 2
    # The fourth moment of a binomial variable less the square of the second.
    spread = math.sqrt(float((expected * (1.0 + (2.0 * both - 6.0) * mass)).sum()))
    beyond = float((square - expected).sum())
    if not beyond > _ODD * spread:
        return None
    # In excess of Poisson counts the squares have the variances of two rates m/sqrt(r).
    rate = (both / (a + b))[:, None] * np.column_stack([a, b])
    more = float((rate[:, 0] ** 2 * (1.0 - share) ** 2 + rate[:, 1] ** 2 * share**2).sum())
    return more / beyond
