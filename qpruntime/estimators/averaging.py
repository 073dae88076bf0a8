"""Averages over hyper-parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime._validation import generator, shown
from qpruntime.errors import InputError
from qpruntime.estimators.parameters import Parameters
from qpruntime.estimators.prior_mean import given_estimator
from qpruntime.estimators.process import all_of, one_or_all, one_or_columns
from qpruntime.inference.posterior import Posterior
from qpruntime.learning.hyper_integration.density import Integrated
from qpruntime.learning.options import Settings, integrate_of
from qpruntime.learning.train import Fit
from qpruntime.likelihoods import Likelihood
from qpruntime.predictive.distribution import PLAIN, RowOffsets
from qpruntime.predictive.expectation import kind_of
from qpruntime.predictive.inversion import mixture_quantiles
from qpruntime.predictive.mixtures import Mixture

__all__ = [
    "Weighed",
    "averaged",
    "densities",
    "deviations",
    "is_integrated",
    "left_out",
    "mixed_at",
    "mixed_draws",
    "mixed_normals",
    "mixed_probabilities",
    "moments",
    "nodes_of",
    "only_mode",
    "remembered",
    "shares",
    "to_integrate",
]

# --- Class probabilities and intervals -----------------------------------------------------------


def mixed_probabilities(model: Parameters, points: Array) -> tuple[Array, Array]:
    """Return log p(-1) and log p(+1) of every process at validated points, each (T,) or (T, K)."""
    columns: tuple[list[Array], list[Array]] = ([], [])
    for weights, models in nodes_of(model):
        log_pairs = [member._log_probabilities(points) for member in models]
        for sign in (0, 1):
            columns[sign].append(densities(weights, [pair[sign] for pair in log_pairs]))
    minus, plus = (one_or_columns(parts) for parts in columns)
    return minus, plus


def mixed_normals(model: Parameters, points: Array, q: Array) -> Array:
    """Return quantiles (T, Q) of two classes' latent function, a mixture of normals."""
    ((weights, models),) = nodes_of(model)
    predicted = [
        member._predicted(points, lambda mean, variance: (mean, variance)) for member in models
    ]
    mean, variance = (np.array([pair[k] for pair in predicted]) for k in (0, 1))
    return Mixture(mean, variance, weights).quantiles(q)


def mixed_at(model: Any, points: Array, q: Array, rows: RowOffsets = PLAIN) -> Array:
    """Return the quantiles (T, Q) of an observation at validated points, in units of y."""
    ((weights, models),) = nodes_of(model)
    centre, unit = model.latent_units()
    latent = [member._predicted(points, lambda m, v: (m, v)) for member in models]
    if model.likelihood_.name == "gaussian":
        # Noise and what is not known of f add up: a mixture of normals.
        noise = [member.likelihood_.parameters["scale"] for member in models]
        mean = np.array([m for m, _ in latent])
        variance = np.array([v + s**2 for (_, v), s in zip(latent, noise, strict=True)])
        return np.asarray(centre + unit * Mixture(mean, variance, weights).quantiles(q))
    parts = [
        member._predicted_.component(m, v, q, rows)
        for member, (m, v) in zip(models, latent, strict=True)
    ]
    quantiles = mixture_quantiles(parts, weights, q, *kind_of(model.likelihood_))
    return np.asarray(centre + unit * quantiles)


# --- Models at the nodes of the hyper-parameters -------------------------------------------------

Given = ParamSpec("Given")
Found = TypeVar("Found")
#: Weights (J,) that sum to 1, and what each node says.
Mean = Callable[[Array, Sequence[Any]], Any]


class Weighed(NamedTuple):
    """Models at the nodes of one process, and what each weighs, shape (J,)."""

    weights: Array
    models: tuple[Any, ...]


def to_integrate(model: Parameters, settings: Settings) -> Settings:
    """Return the settings of a fit that integrates hyper-parameters, if that is asked for.

    Raises
    ------
    InputError
        For an option that leaves nothing to integrate, or whose predictions are of one posterior.
    """
    integrate = integrate_of(getattr(model, "hyperparameters", "mode"))
    if integrate is None:
        return settings
    for conflicts, words in (
        (not settings.optimize, "optimize=False, which takes them as they are: use optimize=True"),
        (
            settings.search.objective == "loo",
            'optimize="loo", which has no evidence to weigh them by: use optimize="evidence"',
        ),
        (settings.solver == "markov", f'solver={shown(model.solver)}: use solver="dense"'),
        (
            model.correction is not None,
            f"correction={shown(model.correction)}, which is of one posterior: use "
            'correction=None, or Integrate(evidence="corrected")',
        ),
        (bool(getattr(model, "monotone", None)), "monotone: leave it out"),
        (given_estimator(model.prior_mean) is not None, "prior_mean: use prior_mean=None"),
    ):
        if conflicts:
            raise InputError(
                f"hyperparameters={shown(model.hyperparameters)} cannot act with {words}, or use "
                'hyperparameters="mode"'
            )
    return replace(settings, integrate=integrate, seeded=model.random_state is not None)


def is_integrated(model: object) -> bool:
    """Decide whether the hyper-parameters of a fitted model were integrated."""
    return getattr(model, "integrated_", None) is not None


def only_mode(model: object, what: str) -> None:
    """Raise `InputError` for what is of one set of hyper-parameters, if many were integrated."""
    if is_integrated(model):
        raise InputError(
            f"{what} of one set of hyper-parameters, and these were integrated: fit with "
            'hyperparameters="mode"'
        )


def nodes_of(model: Parameters) -> tuple[Weighed, ...]:
    """Return the models at the nodes of each process of an integrated model."""
    processes = []
    assert model.integrated_ is not None
    for integrated in all_of(model.integrated_):
        ends = zip(integrated.kernels, integrated.likelihoods, integrated.posteriors, strict=True)
        processes.append(Weighed(integrated.weights, tuple(_at(model, *end) for end in ends)))
    return tuple(processes)


def _at(
    model: Parameters, kernel: Kernel, likelihood: Likelihood, posterior: Posterior
) -> Parameters:
    model_at_node = object.__new__(type(model))
    fitted = {"integrated_": None, "kernel_": kernel, "posterior_": posterior}
    model_at_node.__dict__ = vars(model) | fitted | model._with_likelihood(likelihood)
    return model_at_node


def averaged(mean: Mean) -> Callable[[Callable[Given, Found]], Callable[Given, Found]]:
    """Return a decorator that averages a method over the nodes of an integrated model.

    If there are several processes, the first axis after the rows numbers them; for covariances the
    first axis does.
    """

    def decorate(method: Callable[Given, Found]) -> Callable[Given, Found]:
        """Replace a method by its average over the nodes."""
        plain: Callable[..., Any] = method

        @functools.wraps(method)
        def call(*args: Any, **options: Any) -> Any:
            """Average the method over the nodes, if hyper-parameters are integrated."""
            model, *arguments = args
            if not is_integrated(model):
                return plain(*args, **options)
            averages = [
                mean(weights, [plain(member, *arguments, **options) for member in models])
                for weights, models in nodes_of(model)
            ]
            if len(averages) == 1:
                return averages[0]
            return tuple(map(_joined, zip(*averages, strict=True)))

        return call

    return decorate


def _joined(parts: Sequence[Array]) -> Array:
    """Join vectors as columns (T, K), or matrices as (K, T, T)."""
    return np.column_stack(parts) if parts[0].ndim == 1 else np.array(parts)


def moments(weights: Array, by_node: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return means, and variances or covariances by the law of total variance."""
    centre: Array = sum(w * m for w, (m, _) in zip(weights, by_node, strict=True))
    spread: Array = np.zeros_like(by_node[0][1])
    for w, (m, v) in zip(weights, by_node, strict=True):
        gap = m - centre
        spread = spread + w * (v + (gap**2 if v.ndim == 1 else np.outer(gap, gap)))
    return centre, spread


def deviations(weights: Array, by_node: Sequence[Any]) -> Any:
    """Return means, and standard deviations if `by_node` has them."""
    if not isinstance(by_node[0], tuple):
        return shares(weights, by_node)
    mean, variance = moments(weights, [(m, s**2) for m, s in by_node])
    return mean, np.sqrt(variance)


def densities(weights: Array, by_node: Sequence[Array]) -> Array:
    """Return logarithms of mean densities, or of mean probabilities."""
    logs = np.log(weights).reshape(-1, *(1 for _ in np.shape(by_node[0])))
    with np.errstate(divide="ignore"):
        total: Array = logsumexp(np.array(by_node) + logs, axis=0)
    return total


def shares(weights: Array, by_node: Sequence[Array]) -> Array:
    """Return means of probabilities, or of anything that is linear in the posterior."""
    return np.tensordot(weights, np.array(by_node), axes=1)


def left_out(weights: Array, by_node: Sequence[Array]) -> Array:
    """Return leave-one-out log densities, with nodes re-weighted for each held-out row.

    1/p(y_n | others) is the mean of 1/p(y_n | others, theta).
    """
    logs = np.log(weights)[:, None]
    return -logsumexp(logs - np.array(by_node), axis=0)


def mixed_draws(
    method: Callable[..., Any],
    model: Parameters,
    X: ArrayLike,
    n: int,
    random_state: int | np.random.Generator | None,
    *arguments: Any,
) -> Array:
    """Draw (n, ...) by a method of the models at the nodes, in proportion to their weights."""
    rng = generator(random_state)
    columns = []
    for weights, models in nodes_of(model):
        which = rng.choice(len(weights), size=n, p=weights)
        out: Any = None
        for j in np.unique(which):
            of_node = np.flatnonzero(which == j)
            draws = method(models[j], X, of_node.size, rng, *arguments)
            out = np.empty((n, *draws.shape[1:]), draws.dtype) if out is None else out
            out[of_node] = draws
        columns.append(out)
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=2)


def remembered(fits: Sequence[Fit]) -> Integrated | tuple[Integrated, ...] | None:
    """Return the nodes of the fits as an estimator stores them; None without integration."""
    integrated = tuple(fit.nodes for fit in fits if fit.nodes is not None)
    return one_or_all(integrated) if integrated else None
