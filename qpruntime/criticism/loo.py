"""Leave-one-out densities, PIT values and comparison of models."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from qpruntime._typing import Array
from qpruntime._validation import flag, shown
from qpruntime.errors import InputError, NumericalError
from qpruntime.estimators.averaging import is_integrated, left_out
from qpruntime.estimators.base import GPEstimator
from qpruntime.estimators.classifier import GPClassifier, coupled, statements
from qpruntime.estimators.process import all_of
from qpruntime.inference.multiclass.posterior import ClassPosterior
from qpruntime.inference.posterior import Posterior, solution_of
from qpruntime.inference.solution_protocol import row_numbers
from qpruntime.learning.options import new_generator
from qpruntime.predictive.distribution import Predicted
from qpruntime.predictive.expectation import cdf

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "LeaveOneOut",
    "compare",
    "leave_one_out",
    "left_out_moments",
    "one_process",
    "outcomes_of",
    "pit",
    "processes_of",
    "rows_of",
]

# --- Comparison of models ------------------------------------------------------------------------

#: A fitted model, or a posterior in the units that it was inferred in.
Criticised = GPEstimator | Posterior | ClassPosterior

#: Below so many nats of difference, and so many rows, a normal error of it is not to be relied on.
_CLOSE, _FEW = 4.0, 100
#: Outcomes agree if they differ by so little, in units of their spread: they were scaled.
_SAME = 1e-9


def compare(
    models: Mapping[str, Criticised] | Sequence[Criticised],
    y: ArrayLike | None = None,
    *,
    rows: ArrayLike | None = None,
    evidence: bool = False,
) -> DataFrame:
    """Compare models of the same rows by leave-one-out log predictive densities.

    The best is first. Differences are of the same rows, so their standard error is that of the
    paired terms, mostly far below those of the sums.

    Parameters
    ----------
    models : mapping of name to model, or sequence of models
        Fitted estimators or posteriors; see `leave_one_out`. In a sequence they are called by
        their class and place.
    y : array-like, shape (N,), optional
        Labels of the fits, where several classes are one against the rest.
    rows : array-like of int, shape (n,), optional
        Only of these rows.
    evidence : bool
        Whether to add log evidences: EP's, and corrected by pairs of cumulants with the spread of
        terms of fourth order, about its error. nan where an engine has no corrections, and for
        classes one against the rest, whose evidences are of other questions.

    Returns
    -------
    pandas.DataFrame
        A row a model: ``elpd`` and ``se``, the sum in nats with its standard error; ``difference``
        to the best and ``difference_se``; ``words``, what is to be known of it: a difference of
        less than 4 nats, or less than 100 rows, have standard errors that are too small (Sivula,
        Magnusson, Matamoros & Vehtari 2025).

    Raises
    ------
    InputError
        If the models are of other rows, some have densities of numbers and others probabilities,
        or pandas is missing.

    See Also
    --------
    qpruntime.criticism.leave_one_out, qpruntime.check_calibration

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPPoissonRegressor
    >>> X = np.linspace(0.0, 10.0, 60)[:, None]
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(X[:, 0])))
    >>> model = GPPoissonRegressor().fit(X, y)
    >>> from qpruntime import compare
    >>> other = GPPoissonRegressor(dispersion=1.0).fit(X, y)
    >>> print(compare({"default": model, "overdispersed": other})["elpd"].round(1).to_string())
    model
    default         -138.5
    overdispersed   -153.9
    """
    try:
        import pandas
    except ImportError as error:
        raise InputError("a comparison is a data frame: pip install pandas") from error
    wanted = flag(evidence, "evidence")
    named = _named(models)
    _same_data(named)
    by_name = {
        name: leave_one_out(model, y, rows=rows).log_density for name, model in named.items()
    }
    sizes = {name: densities.size for name, densities in by_name.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"the models are of other rows, and cannot be compared: {sizes}")
    order = sorted(by_name, key=lambda name: -by_name[name].sum())
    table = []
    for name in order:
        density, short = by_name[name], by_name[name] - by_name[order[0]]
        line = {
            "elpd": float(density.sum()),
            "se": standard_error(density),
            "difference": float(short.sum()),
            "difference_se": standard_error(short) if name != order[0] else 0.0,
        }
        if wanted:
            line |= _evidences(named[name])
        table.append({**line, "words": "" if name == order[0] else _words(short)})
    return pandas.DataFrame(table, index=pandas.Index(order, name="model"))


def _named(models: object) -> dict[str, Criticised]:
    """Return models by name, at least one."""
    if isinstance(models, Mapping):
        named = {str(name): model for name, model in models.items()}
    elif isinstance(models, Sequence) and not isinstance(models, str):
        named = {f"{type(model).__name__} {i}": model for i, model in enumerate(models)}
    else:
        raise InputError(f"models must be a mapping or a sequence of models, got {shown(models)}")
    if not named:
        raise InputError("there are no models to compare")
    return named


def _words(short: Array) -> str:
    """Describe how far a difference of rows can be trusted."""
    if not short.any():
        return "the same predictions"
    said = []
    if abs(short.sum()) < _CLOSE:
        said.append(f"less than {_CLOSE:g} nats: not told apart")
    if short.size < _FEW:
        said.append(f"less than {_FEW} rows: the standard error is too small")
    return "; ".join(said)


def _same_data(named: Mapping[str, Criticised]) -> None:
    """Raise `InputError` if models are of data that do not compare, where that can be seen."""
    kinds, outcomes = {}, {}
    for name, model in named.items():
        if isinstance(model, ClassPosterior | Posterior):
            continue
        posts = processes_of(model)
        likelihood = getattr(model, "likelihood_", None)
        numbers = likelihood is not None and not Predicted.discrete(likelihood)
        kinds[name] = "densities" if numbers else "probabilities"
        solution = solution_of(posts[0])
        if isinstance(posts[0], Posterior) and len(posts) == 1 and solution.name == "dense":
            centre, unit = model.latent_units()
            outcomes[name] = (centre + unit * solution.observed().y)[: len(model.X_train_)]
    if len(set(kinds.values())) > 1:
        raise InputError(
            f"densities of numbers do not compare with probabilities of counts or labels: {kinds}"
        )
    first = next(iter(outcomes), None)
    for name, y in outcomes.items():
        known = outcomes[first] if first is not None else y
        spread = float(np.abs(known).max(initial=0.0))
        if y.shape != known.shape or not (np.abs(y - known) <= _SAME * spread).all():
            raise InputError(f"{first!r} and {name!r} were fitted to other outcomes")


def _evidences(model: Criticised) -> dict[str, float]:
    """Log evidence in units of the data, corrected, with its spread; nan where there is none."""
    bare = isinstance(model, ClassPosterior | Posterior)
    posts: tuple[Posterior, ...] = all_of(model) if bare else processes_of(model)  # type: ignore[arg-type]
    unit = 1.0 if bare else model.latent_units()[1]  # type: ignore[union-attr]
    evidences = {"log_evidence": math.nan, "corrected": math.nan, "spread": math.nan}
    if len(posts) > 1:
        return evidences
    post = posts[0]
    scaled = post.n * math.log(unit)
    evidences["log_evidence"] = post.log_evidence - scaled
    if solution_of(post).corrects and (bare or post.knows_covariance):
        with contextlib.suppress(InputError):
            corrected = post.corrected_evidence()
            evidences |= {"corrected": corrected.value - scaled, "spread": corrected.spread}
    return evidences


# --- Probability integral transforms -------------------------------------------------------------


def pit(
    model: GPEstimator,
    y: ArrayLike | None = None,
    *,
    rows: ArrayLike | None = None,
    random_state: int | np.random.Generator | None = None,
) -> Array:
    """Probability integral transform of the rows of a fit, each predicted from the others.

    ``P(Y_i <= y_i | y_-i)`` by the cavity of the row, shape (n,). They are uniform if the model is
    right: a hump means that its intervals are too wide, a valley too narrow, a slope a bias. The
    value of a count is drawn between ``P(Y_i < y_i | y_-i)`` and ``P(Y_i <= y_i | y_-i)``, which
    makes it uniform as well (Czado, Gneiting & Held 2009).

    Parameters
    ----------
    model : fitted GPPoissonRegressor, GPRobustRegressor or GPRegressor
        Labels have few values: for classifiers see `qpruntime.plotting.CalibrationDisplay`.
    y : array-like, shape (N,), optional
        What was fitted, in its order: needed if the model was fitted by states or inducing points.
    rows : array-like of int, shape (n,), optional
        Only of these rows.
    random_state : int, Generator or None
        For counts.

    Returns
    -------
    ndarray, shape (n,)

    Raises
    ------
    InputError
        If the model is another, or `y` is needed.

    See Also
    --------
    qpruntime.plotting.RanksDisplay, qpruntime.check_calibration

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPPoissonRegressor
    >>> X = np.linspace(0.0, 10.0, 60)[:, None]
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(X[:, 0])))
    >>> model = GPPoissonRegressor().fit(X, y)
    >>> from qpruntime.criticism import pit
    >>> ranks = pit(model, random_state=0)
    >>> ranks.shape, bool(0.4 < ranks.mean() < 0.6)
    ((60,), True)
    """
    likelihood = getattr(model, "likelihood_", None)
    if likelihood is None or likelihood.given is None:
        raise InputError(
            f"pit takes a model whose observations have a distribution function, got "
            f"{type(model).__name__}; of a classifier draw "
            "qpruntime.plotting.CalibrationDisplay.from_estimator(model, X, y)"
        )
    post = one_process(model, "ranks")
    chosen = rows_of(model, rows)
    outcomes = outcomes_of(model, post, y)[chosen]
    mean, variance = left_out_moments(post, chosen)
    upto: Array = cdf(likelihood, mean, variance, outcomes)
    if not Predicted.discrete(likelihood):
        return upto
    below = np.where(
        outcomes >= 1.0, cdf(likelihood, mean, variance, np.maximum(outcomes - 1.0, 0.0)), 0.0
    )
    return below + new_generator(random_state).uniform(size=outcomes.size) * (upto - below)


def left_out_moments(post: Posterior, rows: NDArray[np.intp]) -> tuple[Array, Array]:
    """Cavity means and variances of rows, (n,), as the likelihood takes them.

    The posterior without the whole site of the row: 1/v_c = 1/v - tau and m_c/v_c = m/v - nu.
    Inducing points have a residue beside, and say it themselves.

    Raises
    ------
    NumericalError
        If a row has none: its site has more than its posterior.
    """
    solution = solution_of(post)
    if hasattr(solution, "left_out"):
        mean, variance = solution.left_out(rows)
    else:
        m, v, tau, nu = (a[rows] for a in (post.mean, post.variance, *post.sites))
        kept = 1.0 - tau * v
        mean, variance = (m - v * nu) / kept, v / kept
    wrong = ~(np.isfinite(mean) & (variance > 0.0))
    if wrong.any():
        raise NumericalError(f"row {rows[wrong][0]} has no cavity: leave it out, rows=...")
    return mean, variance


def outcomes_of(model: GPEstimator, post: Posterior, y: ArrayLike | None) -> Array:
    """Return encoded outcomes of the fit, as its likelihood takes them."""
    solution = solution_of(post)
    if y is None:
        if solution.name != "dense":
            raise InputError("the outcomes of this fit are not kept: pass y, in its order")
        return np.asarray(solution.observed().y)
    centre, unit = model.latent_units()
    if isinstance(model, GPClassifier):
        labels = np.asarray(y)
        if not np.isin(labels, model.classes_).all():
            raise InputError(f"y has labels beside the classes {list(model.classes_)} of the fit")
        outcomes = np.where(labels == model.classes_[-1], 1.0, -1.0)
    else:
        outcomes = np.asarray(y, dtype=float)
    if outcomes.shape != (solution.held_rows,):
        raise InputError(f"y must have shape {(solution.held_rows,)}, got {outcomes.shape}")
    return (outcomes - centre) / unit


# --- Leave-one-out densities ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class LeaveOneOut:
    """Log predictive density of each row given the others.

    Attributes
    ----------
    log_density : ndarray, shape (n,)
        ``log p(y_i | y_-i)``, in units of the data: of probabilities for labels and counts.

    See Also
    --------
    qpruntime.criticism.leave_one_out

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPPoissonRegressor
    >>> X = np.linspace(0.0, 10.0, 60)[:, None]
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(X[:, 0])))
    >>> model = GPPoissonRegressor().fit(X, y)
    >>> from qpruntime.criticism import leave_one_out
    >>> result = leave_one_out(model)
    >>> result.log_density.shape
    (60,)
    """

    log_density: Array

    @property
    def elpd(self) -> float:
        """Expected log predictive density of n new rows: the sum, in nats."""
        return float(self.log_density.sum())

    @property
    def se(self) -> float:
        """Standard error of `elpd`, sqrt(n) times the standard deviation of a row; nan of one."""
        return standard_error(self.log_density)

    def __repr__(self) -> str:
        n = self.log_density.size
        return f"<LeaveOneOut of {n} rows: elpd {self.elpd:.2f}, standard error {self.se:.2f}>"


def leave_one_out(
    model: Criticised, y: ArrayLike | None = None, *, rows: ArrayLike | None = None
) -> LeaveOneOut:
    """Leave-one-out log predictive densities of the rows a model was fitted to.

    These are the densities of `Posterior.loo`, from the cavities of the sites, at the
    hyper-parameters of the fit. No fit is repeated, so the hyper-parameters still depend on the
    row; integrated ones are re-weighted without it. Densities are in the data's units, so models
    that scale y differently compare. They are log probabilities of the class if there are several,
    coupled as the model's predictions are.

    Parameters
    ----------
    model : fitted estimator, or Posterior
        A posterior is taken as it is, in the units it was inferred in.
    y : array-like, shape (N,), optional
        Labels of the fit, in its order: of several classes, one against the rest, only.
    rows : array-like of int, shape (n,), optional
        Only of these rows; of a million rows a few thousand say enough.

    Returns
    -------
    LeaveOneOut

    Raises
    ------
    InputError
        If `y` or `rows` do not fit the model, or it is of a kind that is not known here.

    See Also
    --------
    qpruntime.compare, qpruntime.criticism.pit

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPPoissonRegressor
    >>> X = np.linspace(0.0, 10.0, 60)[:, None]
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(X[:, 0])))
    >>> model = GPPoissonRegressor().fit(X, y)
    >>> from qpruntime.criticism import leave_one_out
    >>> leave_one_out(model, rows=[0, 1]).log_density.round(2).tolist()
    [-1.71, -3.9]
    """
    if isinstance(model, ClassPosterior | Posterior):
        log_density = model.loo()
        return LeaveOneOut(
            log_density if rows is None else log_density[row_numbers(rows, log_density.size)]
        )
    posts = processes_of(model)
    if isinstance(posts[0], ClassPosterior):
        return leave_one_out(posts[0], rows=rows)
    chosen = rows_of(model, rows)
    if len(posts) == 1:
        unit = math.log(model.latent_units()[1])
        return LeaveOneOut(_left_out(model, chosen)[0] - unit)
    assert isinstance(model, GPClassifier), "others have one latent function"
    codes = _codes(model, posts, y)[chosen]
    minus, plus = statements(_left_out(model, chosen), codes)
    return LeaveOneOut(coupled(minus, plus, model.coupling_)[np.arange(codes.size), codes])


def processes_of(model: GPEstimator) -> tuple[Posterior, ...]:
    """Return the posteriors of a fitted estimator, of a joint model its `ClassPosterior`.

    Raises
    ------
    InputError
        If it is no estimator of this package.
    """
    if not hasattr(model, "processes") or not hasattr(model, "get_params"):
        raise InputError(f"a fitted estimator of qpruntime is needed, got {shown(model)}")
    check_is_fitted(model)
    posterior = model.posterior_
    return posterior if isinstance(posterior, tuple) else (posterior,)


def one_process(model: GPEstimator, what: str) -> Posterior:
    """Return the posterior of a model of one latent function and of observations of one number.

    Raises
    ------
    InputError
        If it is another; `what` cannot be had of it.
    """
    posts = processes_of(model)
    one_number(model)
    if len(posts) > 1 or isinstance(posts[0], ClassPosterior):
        raise InputError(f"{what} are of models of one latent function, not of several classes")
    return posts[0]


def one_number(model: GPEstimator) -> None:
    """Raise `InputError` if an observation of this model is several numbers."""
    likelihood = getattr(model, "likelihood_", None)
    if likelihood is not None and likelihood.columns > 1:
        raise InputError(
            f"an observation of {likelihood.name!r} is {likelihood.columns} numbers, which have no "
            "rank and are not drawn: leave_one_out and compare take such models"
        )


def rows_of(model: GPEstimator, rows: ArrayLike | None) -> NDArray[np.intp]:
    """Numbers of rows of the data, by default all: statements about slopes come after them."""
    n_held = solution_of(all_of(model.posterior_)[0]).held_rows
    n = len(model.X_train_) or n_held
    if n > n_held:
        raise InputError(f"the posterior has {n_held} of {n} rows: say which, rows=...")
    return np.arange(n) if rows is None else row_numbers(rows, n)


def standard_error(values: Array) -> float:
    """Return the standard error of a sum, by the spread of its terms; nan of one term."""
    n = values.size
    return math.sqrt(n) * float(values.std(ddof=1)) if n > 1 else math.nan


def _left_out(model: GPEstimator, chosen: NDArray[np.intp]) -> list[Array]:
    """Densities of rows left out, of every process; with hyper-parameters weighed again."""
    averages = model.integrated_ if is_integrated(model) else None
    if averages is None:
        return [post.loo(chosen) for post in processes_of(model)]
    return [
        left_out(integrated.weights, [post.loo(chosen) for post in integrated.posteriors])
        for integrated in all_of(averages)
    ]


def _codes(
    model: GPClassifier, posts: tuple[Posterior, ...], y: ArrayLike | None
) -> NDArray[np.intp]:
    """Return the class of each row, from labels or from the data that the engine has kept."""
    if y is None:
        if solution_of(posts[0]).name != "dense":
            raise InputError(
                "the labels of this fit are not kept: pass y, those it was fitted to, in its order"
            )
        signs = np.array([solution_of(post).observed().y for post in posts])
        return np.asarray(np.argmax(signs, axis=0).astype(np.intp))
    labels = np.asarray(y)
    n_held = solution_of(posts[0]).held_rows
    if labels.shape != (n_held,):
        raise InputError(f"y must have shape {(n_held,)}, the rows of the fit, got {labels.shape}")
    if not np.isin(labels, model.classes_).all():
        wrong = shown(labels[~np.isin(labels, model.classes_)][0].item())
        known = shown(model.classes_.tolist())
        raise InputError(f"y has the label {wrong}, and the model knows {known}")
    return np.searchsorted(model.classes_, labels).astype(np.intp)
