"""A fitted model as ArviZ takes it: draws, predictions and densities of rows in labelled groups."""

from __future__ import annotations

import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._typing import Array
from qpruntime._validation import whole
from qpruntime.criticism.loo import leave_one_out, one_process, outcomes_of, rows_of
from qpruntime.criticism.simulation import drawn_outcomes, points_of
from qpruntime.errors import InputError
from qpruntime.estimators.base import GPEstimator
from qpruntime.estimators.classifier import GPClassifier
from qpruntime.inference.posterior import Posterior, solution_of
from qpruntime.learning.options import new_generator
from qpruntime.predictive.density import log_density

if TYPE_CHECKING:
    from xarray import Dataset, DataTree

__all__ = ["to_arviz"]


def to_arviz(
    model: GPEstimator,
    y: ArrayLike | None = None,
    *,
    X: ArrayLike | None = None,
    n_samples: int = 1000,
    random_state: int | np.random.Generator | None = None,
) -> DataTree:
    """Return draws of a fitted model in ArviZ's form.

    Groups, all of the rows of the fit and with one chain of independent draws: ``posterior`` has
    ``f``, joint draws of the latent function; ``posterior_predictive`` has ``y``;
    ``log_likelihood`` has ``y``, log p(y_i | f_i); ``observed_data`` has ``y``; ``loo`` has
    ``log_density``, those of `leave_one_out`, which need no importance sampling. Hyper-parameters
    are those of the fit, and no draws. Values are in units of the data, of two classes labels are
    0 and 1.

    Parameters
    ----------
    model : fitted GPClassifier of two classes, or estimator of counts or numbers
    y : array-like, shape (N,), optional
        What was fitted, in its order: needed if the model was fitted by states or inducing points.
    X : array-like, shape (N, d), optional
        Rows of the fit, needed by the same models.
    n_samples : int
    random_state : int, Generator or None

    Returns
    -------
    xarray.DataTree, or arviz.InferenceData
        The latter where ArviZ is installed and older than 1.0.

    Raises
    ------
    InputError
        If the model has several classes, `y` or `X` is needed, or xarray is missing.

    See Also
    --------
    qpruntime.criticism.leave_one_out, qpruntime.compare

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPPoissonRegressor
    >>> X = np.linspace(0.0, 10.0, 60)[:, None]
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(X[:, 0])))
    >>> model = GPPoissonRegressor().fit(X, y)
    >>> from qpruntime.criticism import to_arviz
    >>> draws = to_arviz(model, n_samples=100, random_state=0)
    >>> draws["posterior"]["f"].shape
    (1, 100, 60)
    """
    try:
        import xarray
    except ImportError as error:
        raise InputError("groups are made by xarray: pip install xarray arviz") from error
    count = whole(n_samples, "n_samples", 1)
    post = one_process(model, "draws")
    rng, rows = new_generator(random_state), rows_of(model, None)
    outcomes = outcomes_of(model, post, y)[rows]
    f = _draws(model, post, X, count, rng)[:, rows]
    centre, unit = model.latent_units()
    likelihood = model.fitted_likelihood
    if likelihood is None:
        raise InputError("the likelihood of this model is known from a table alone: no densities")
    dense = log_density(likelihood, f, np.zeros_like(f), np.broadcast_to(outcomes, f.shape))

    def raw(values: Array) -> Array:
        return 0.5 * (1.0 + values) if isinstance(model, GPClassifier) else centre + unit * values

    def drawn(**values: Array) -> Dataset:
        named = {k: (("chain", "draw", "row"), v[None]) for k, v in values.items()}
        return xarray.Dataset(named, {"chain": [0], "draw": np.arange(count), "row": rows})

    def single(**values: Array) -> Dataset:
        return xarray.Dataset({k: (("row",), v) for k, v in values.items()}, {"row": rows})

    predicted = np.array([drawn_outcomes(model, latent, rng) for latent in f])
    held_out = leave_one_out(model)
    groups = {
        "posterior": drawn(f=centre + unit * f),
        "posterior_predictive": drawn(y=raw(predicted)),
        "log_likelihood": drawn(y=dense - np.log(unit)),
        "observed_data": single(y=raw(outcomes)),
        "loo": single(log_density=held_out.log_density),
    }
    return _joined(groups)


def _draws(
    model: GPEstimator, post: Posterior, X: ArrayLike | None, count: int, rng: np.random.Generator
) -> Array:
    """Joint draws (count, N) of the latent function, as the likelihood takes it."""
    solution = solution_of(post)
    if solution.name == "dense":
        if not post.knows_covariance:
            model.restore_covariances()
            post = one_process(model, "draws")
        return post.sample(n_samples=count, random_state=rng)
    points = points_of(model, X)
    if len(points) != solution.held_rows:
        raise InputError(f"X must have the {solution.held_rows} rows of the fit, got {len(points)}")
    if (getattr(model, "exposure_", np.ones(0)) != 1.0).any():
        raise InputError("draws of counts with exposures are of models fitted by covariances")
    centre, unit = model.latent_units()
    return (model.sample_latent(points, count, rng) - centre) / unit


def _joined(groups: dict[str, Dataset]) -> DataTree:
    """Return groups as the ArviZ that is installed takes them, if any is."""
    import xarray

    try:
        old = int(version("arviz").split(".")[0]) < 1
    except PackageNotFoundError:
        old = False
    if not old:
        return xarray.DataTree.from_dict(groups)
    # ArviZ announces its next release.
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        import arviz
    return arviz.InferenceData(**groups)
