"""Base of the deep estimators: parameters, checked data, passes in blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from qpruntime._typing import Array
from qpruntime._validation import choice, flag, no_text, number, shown, whole
from qpruntime.dataframes.lazy_rows import LazyInputs, is_lazy
from qpruntime.deep.batches import feed_of, standard_units
from qpruntime.deep.initialisation import first_layers
from qpruntime.deep.layers import Layer
from qpruntime.deep.plots import draw_history, draw_layers
from qpruntime.deep.predictive import drawn, normals
from qpruntime.deep.training import Trained, TrainingPlan, polished, reporting, train
from qpruntime.errors import InputError
from qpruntime.estimators.input_data import checked
from qpruntime.execution.blas_threads import alone
from qpruntime.learning.inducing_points import SAMPLE, sample
from qpruntime.learning.inputs import Inputs
from qpruntime.learning.options import Inducing
from qpruntime.learning.progress import call_both
from qpruntime.learning.settings import generator
from qpruntime.likelihoods import Likelihood

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DeepGP"]


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
        rng = generator(self.random_state)
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
