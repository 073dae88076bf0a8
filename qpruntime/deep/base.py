"""Base of the deep estimators: parameters, checked data, initial layers, passes in blocks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data
from threadpoolctl import threadpool_limits

from qpruntime._typing import Array
from qpruntime._validation import choice, flag, no_text, number, shown, whole
from qpruntime.dataframes.lazy_rows import LazyInputs, is_lazy
from qpruntime.deep.batches import feed_of, standard_units
from qpruntime.deep.layers import Layer
from qpruntime.deep.plots import draw_history, draw_layers
from qpruntime.deep.predictive import drawn, normals
from qpruntime.deep.training import Trained, TrainingPlan, polished, reporting, train
from qpruntime.errors import InputError
from qpruntime.estimators.input_data import checked
from qpruntime.execution.threads import alone
from qpruntime.learning.inducing_points import SAMPLE, sample
from qpruntime.learning.inputs import Inputs
from qpruntime.learning.options import Inducing, new_generator
from qpruntime.learning.progress import call_both
from qpruntime.likelihoods import Likelihood

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DeepGP", "first_layers"]


@dataclass(eq=False, repr=False, match_args=False)
class DeepGP(BaseEstimator):
    """Parameters, and what fits and predictions share. The first may be given by position."""

    hidden: Sequence[int] = (2,)
    inducing: int | Inducing = 50
    power: float = 1.0
    linear_mean: bool = False
    max_iter: int = 3000
    batch_size: int = 100
    learning_rate: float = 0.01
    least_gain: float = 1e-3
    dtype: Literal["mixed", "float64"] = "float64"
    verbose: int = 0
    callback: Callable[[int, float], Any] | None = None
    random_state: int | np.random.RandomState | np.random.Generator | None = None
    devices: int = 1
    polish: int = 0

    def _plan(self, likelihood: Likelihood | None) -> TrainingPlan:
        """Check the parameters."""
        _widths(self.hidden)
        _count(self.inducing)
        flag(self.linear_mean, "linear_mean")
        return TrainingPlan(
            likelihood,
            number(self.power, "power", above=0.0, most=1.0),
            whole(self.max_iter, "max_iter", 1),
            whole(self.batch_size, "batch_size", 1),
            number(self.learning_rate, "learning_rate", above=0.0),
            number(self.least_gain, "least_gain", above=-1.0),
            _precision(self.dtype),
            whole(self.devices, "devices", 1),
            whole(self.polish, "polish", 0),
        )

    @alone
    def _train(
        self,
        X: Array | LazyInputs,
        targets: Sequence[Array],
        weights: Array | None,
        plan: TrainingPlan,
    ) -> list[Trained]:
        """Train one process after the other, of the same rows, and store what all models have."""
        weight = np.ones(len(targets[0])) if weights is None else weights
        if not weight.sum() > plan.power:
            raise InputError(
                f"the weights sum to {weight.sum():.3g}: they count rows, of which more than "
                f"power={plan.power:g} are needed"
            )
        if plan.polish and is_lazy(X):
            raise InputError("polish takes rows in memory, not those read in parts: leave it at 0")
        units = self._units_ = standard_units(X, weight)
        rng = new_generator(self.random_state)
        sample_rows = units.scaled(Inputs(X).at(sample(len(weight), SAMPLE, rng)))
        steps = plan.max_iter + plan.polish
        with jax.enable_x64(True), reporting(self.verbose, steps, len(targets)) as shown:
            outputs, count = [], _count(self.inducing)
            for y in targets:
                layers = first_layers(sample_rows, self.hidden, count, self.linear_mean, rng)
                report = call_both(shown, self.callback)
                feed = feed_of(X, y, weight, units)
                trained = train(layers, feed, plan, rng, report)
                if plan.polish and trained.converged:
                    trained = polished(trained, feed.data, plan, report)
                outputs.append(trained)
        self.layers_ = tuple(output.layers for output in outputs)
        self.history_ = (
            outputs[0].history if len(outputs) == 1 else [output.history for output in outputs]
        )
        self.n_iter_ = max(len(output.history) for output in outputs)
        self.converged_ = all(output.converged for output in outputs)
        return outputs

    def hidden_layers(self, X: ArrayLike, process: int = 0) -> list[tuple[Array, Array]]:
        """Means and variances (T, Q) of every layer's outputs at `X`, without their noise.

        The last pair is of the function, in the units of training. `process` is the number of a
        class where there are several.
        """
        return normals(self._process(process), self._new_data(X))

    def plot_history(self, axes: Axes | None = None) -> Axes:
        """Draw the energy by steps with its running mean; needs matplotlib. Returns the axes."""
        check_is_fitted(self)
        return draw_history(
            self.history_ if isinstance(self.history_, list) else [self.history_], axes
        )

    def plot_layers(self, X: ArrayLike, process: int = 0) -> Figure:
        """Draw what every layer makes of one or two inputs, over the range of `X`.

        Curves with two standard deviations, or maps of means; needs matplotlib. Returns the figure.
        """
        layers, points = self._process(process), self._points(X)
        return draw_layers(
            lambda some: normals(layers, self._units_.scaled(some)),
            points.min(axis=0),
            points.max(axis=0),
        )

    def _process(self, process: int) -> tuple[Layer, ...]:
        """Return the layers of one process."""
        check_is_fitted(self)
        number = whole(process, "process", 0)
        if number >= len(self.layers_):
            raise InputError(f"process is {number}, of {len(self.layers_)} counted from 0")
        return self.layers_[number]

    def _points(self, X: ArrayLike) -> Array:
        """Validate points to predict at."""
        check_is_fitted(self)
        no_text(X, "X")
        return np.asarray(checked(validate_data, self, X, dtype=np.float64, reset=False))

    def _new_data(self, X: ArrayLike) -> Array:
        """Validate points to predict at, and standardise them."""
        points = self._points(X)
        return self._units_.scaled(points)

    def _last(self, points: Array, n_samples: int | None = None) -> list[tuple[Array, Array]]:
        """Means and variances (T, S) of every process at standardised points.

        S normals of equal share: one of the pass of moments, or those of draws through the layers.
        """
        if n_samples is None:
            return [normals(layers, points)[-1] for layers in self.layers_]
        return self._draws(points, n_samples, np.random.default_rng(0))

    def _draws(
        self, points: Array, n_samples: int, rng: np.random.Generator
    ) -> list[tuple[Array, Array]]:
        count = whole(n_samples, "n_samples", 1)
        return [drawn(layers, points, count, rng) for layers in self.layers_]


def _count(inducing: object) -> int:
    """Return how many inducing inputs there are, or raise `InputError`."""
    if not isinstance(inducing, Inducing):
        return whole(inducing, "inducing", 1)
    for name, value in inducing.changed().items():
        if name != "points":
            raise InputError(
                f"{name}={shown(value)} of inducing= cannot act in a deep model, which has options "
                "of its own: give Inducing(50) or a number"
            )
    return whole(inducing.points, "inducing", 1)


def _precision(dtype: str) -> str:
    """Return the precision of what pairs of inducing inputs hold, or raise `InputError`."""
    return "float32" if choice(dtype, "dtype", ("mixed", "float64")) == "mixed" else "float64"


def _widths(hidden: object) -> None:
    """Raise `InputError` unless these are widths of layers."""
    if isinstance(hidden, (str, bytes)) or not isinstance(hidden, (Sequence, np.ndarray)):
        raise InputError(
            f"hidden must be a sequence of widths such as (2,), or () for one layer, got {hidden!r}"
        )
    for width in hidden:
        whole(width, "every width in hidden", 1)


#: Rows that distances are made of, at most.
_PAIRED = 500
#: Precision of sites of hidden and of last layers, noise, and the size of random numbers.
_SURE, _UNSURE, _NOISE, _SMALL = 100.0, 0.01, 0.01, 0.01


def first_layers(
    X: Array, hidden: Sequence[int], inducing: int, linear: bool, rng: np.random.Generator
) -> tuple[Layer, ...]:
    """Return the layers that training starts from.

    Parameters
    ----------
    X : ndarray, shape (N, D)
        Standardised rows, or a sample of them.
    hidden : sequence of int
        Widths of the hidden layers; the last layer has one output.
    inducing : int
        Inducing inputs of every layer.
    linear : bool
        Whether hidden layers have the scores for their mean, which their functions otherwise begin
        with.

    Raises
    ------
    InputError
        If there are fewer different rows than inducing inputs.
    """
    different = len(np.unique(X, axis=0))
    if different < inducing:
        raise InputError(
            f"inducing is {inducing}, but X has {different} different rows: "
            f"take inducing={different} or fewer"
        )
    layers, inputs = [], X
    for width in hidden:
        Z = _centres(inputs, inducing, rng)
        directions = _scores(inputs, width, rng)
        layer = _layer(inputs, Z, width, _SURE)
        if linear:
            layer = layer._replace(slope=directions.T)
        else:
            # eta so that q has the scores for its means at Z: those of white w are L^-1 t(Z).
            inverse = np.linalg.inv(np.linalg.cholesky(_covariance(layer)))
            layer = layer._replace(eta=(1.0 + _SURE) * (inverse @ (Z @ directions)).T)
        noise = _SMALL * rng.standard_normal(layer.eta.shape)
        layers.append(layer._replace(eta=layer.eta + noise))
        inputs = inputs @ directions
    last = _layer(inputs, _centres(inputs, inducing, rng), 1, _UNSURE)
    layers.append(last._replace(eta=_SMALL * rng.standard_normal(last.eta.shape)))
    return tuple(layers)


def _layer(inputs: Array, Z: Array, width: int, precision: float) -> Layer:
    sample = inputs[:: -(-len(inputs) // _PAIRED)]
    gaps = np.sqrt(((sample[:, None] - sample) ** 2).sum(axis=2))[np.triu_indices(len(sample), 1)]
    middle = float(np.median(gaps)) or 1.0
    return Layer(
        Z=Z,
        log_scale=np.full(Z.shape[1], np.log(middle)),
        log_variance=np.array(0.0),
        log_noise=np.array(np.log(_NOISE)),
        eta=np.zeros((width, len(Z))),
        root=np.tile(np.sqrt(precision) * np.eye(len(Z)), (width, 1, 1)),
        slope=None,
    )


def _covariance(layer: Layer) -> Array:
    gaps = (layer.Z[:, None] - layer.Z) / np.exp(layer.log_scale)
    return np.asarray(np.exp(-0.5 * (gaps**2).sum(axis=2)) + 1e-6 * np.eye(len(layer.Z)))


def _scores(inputs: Array, width: int, rng: np.random.Generator) -> Array:
    """Directions (D, width) whose scores have variance 1: leading ones, then random mixtures."""
    centred = inputs - inputs.mean(axis=0)
    _, sizes, rows = np.linalg.svd(centred, full_matrices=False)
    kept = min(width, int((sizes > 1e-6 * sizes[0]).sum()))
    directions = rows[:kept].T
    largest = np.abs(directions).argmax(axis=0)
    directions = directions * np.sign(directions[largest, np.arange(kept)])
    directions = directions / (sizes[:kept] / np.sqrt(len(inputs)))
    mixtures = rng.standard_normal((kept, width - kept))
    mixtures /= np.sqrt((mixtures**2).sum(axis=0))
    return np.hstack([directions, directions @ mixtures])


def _centres(inputs: Array, count: int, rng: np.random.Generator) -> Array:
    """Centres of clusters, which are no two the same."""
    seed = int(rng.integers(2**31))
    # Threads would add in the order in which they end.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different scores than centres
        clusters = KMeans(count, n_init=1, max_iter=50, random_state=seed).fit(inputs)
    centres = np.asarray(clusters.cluster_centers_)
    if len(np.unique(centres, axis=0)) < count:
        centres = centres + _SMALL * rng.standard_normal(centres.shape)
    return centres
