"""The result of inference on a series: what `Posterior` has, and predictions at any time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.markov.evidence import gradient
from qpruntime.inference.markov.rows import Rows, Series
from qpruntime.inference.markov.state_space import StateSpace, state_space
from qpruntime.inference.markov.times import Clock
from qpruntime.inference.posterior import Posterior
from qpruntime.inference.schedules import Limits
from qpruntime.inference.sites import Sites
from qpruntime.validation import finite

__all__ = ["SeriesPosterior"]

_DENSE = "{} needs the dense engine: infer(kernel(t[:, None]), y, ...)"


@dataclass(frozen=True, eq=False, kw_only=True)
class SeriesPosterior(Posterior):
    """Gaussian approximation of the latent posterior of a series, with everything in O(N).

    Attributes are those of `qpruntime.Posterior`, in the order of the rows that were given, those
    of NaN left out; `log_z` and `factor` are for internal use. White noise in the kernel is part of
    the latent values at the observations, as it is in ``kernel(X)``, and of the variance of
    predictions, as it is in ``kernel.diag(X)``.

    Attributes
    ----------
    kernel : scikit-learn kernel
        Of the prior.
    state_dimension : int
        Size of the state.
    kernel_error : float
        Bound of what the state leaves out of the kernel: of a periodic part's Fourier series.
    rows : ndarray of int, shape (M,)
        Which of the rows given were observed.
    """

    kernel: Kernel
    state_dimension: int
    kernel_error: float
    rows: NDArray[np.intp] = field(repr=False)
    clock: Clock = field(repr=False)
    series: Series = field(repr=False)
    space: StateSpace = field(repr=False)
    order: NDArray[np.intp] = field(repr=False)
    limits: Limits

    def predict(  # type: ignore[override]
        self, t_new: ArrayLike, mean_new: ArrayLike = 0.0
    ) -> tuple[Array, Array]:
        """Latent mean and variance at T times, in O(N + T).

        Parameters
        ----------
        t_new : array-like, shape (T,)
            Before, between and after the data, in any order, of the kind of the data's times.
        mean_new : float or array-like, shape (T,)
            Prior mean there.

        Returns
        -------
        mean, variance : ndarray, shape (T,)
            Of the latent function, not of an observation.
        """
        new = self.clock.read(t_new, "t_new")
        offset = finite(mean_new, "mean_new")
        if offset.shape not in ((), new.shape):
            raise InputError(f"mean_new must have shape {new.shape}, got {offset.shape}")
        series, space = self.series, self.space
        n = series.t.size
        both = np.concatenate([series.t, new])
        order = np.argsort(both, kind="stable")
        place = np.empty(both.size, dtype=np.intp)
        place[order] = np.arange(both.size)
        none = np.zeros(new.size)

        def merged(values: Array, more: Array) -> Array:
            return np.concatenate([values, more])[order]

        scales = series.scales
        sorted_sites = self._sorted_sites()
        grid = replace(
            series,
            t=both[order],
            scale=merged(scales, np.ones(new.size)),
            weights=None,
        )
        rows = Rows(
            grid, space, Sites(merged(sorted_sites[0], none), merged(sorted_sites[1], none))
        )
        rows.run(ahead=False)
        report = np.empty((both.size, 4))
        rows.run(ahead=True, report=report)
        found = report[place[n:]]
        return found[:, 0] + offset, np.maximum(found[:, 1], 0.0) + space.noise

    def on(self, kernel: Kernel, t: Array) -> SeriesPosterior:
        """Return this posterior with times in another unit, shape (M,), and the kernel in it."""
        space = state_space(kernel)
        series = replace(self.series, t=np.ascontiguousarray(t[self.order]))
        return replace(self, kernel=kernel, series=series, space=space)

    def _sorted_sites(self) -> tuple[Array, Array]:
        """Sites in order of time, about the prior mean."""
        series = self.series
        tau, nu = self.sites.tau[self.order], self.sites.nu[self.order]
        return tau, nu - tau * series.prior

    def evidence_gradient(self) -> Array:  # type: ignore[override]
        """Gradient of EP's log evidence by the free log parameters, ``kernel.theta``, in O(N).

        Exact at an EP fixed point only, like that of the dense engine.
        """
        rows = Rows(self.series, self.space, Sites(*self._sorted_sites()))
        rows.run(ahead=True)
        return gradient(rows, self.mean[self.order], self.variance[self.order])

    def marginals(self, *args: Any, **options: Any) -> Any:
        """Refused: corrections are of the dense engine."""
        raise InputError(_DENSE.format("marginals"))

    def corrected_evidence(self) -> Any:
        """Refused: corrections are of the dense engine."""
        raise InputError(_DENSE.format("corrected_evidence"))
