"""The result of inference on a series: what `Posterior` has, and predictions at any time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.markov.conclude import Placed, concluded, ending
from qpruntime.inference.markov.evidence import noise_slope
from qpruntime.inference.markov.more import More, merged, read_more, with_times
from qpruntime.inference.markov.observations import Series
from qpruntime.inference.markov.rows import Rows
from qpruntime.inference.markov.sample import draw
from qpruntime.inference.markov.stream import EVERY, Piece, append, joined_pieces
from qpruntime.inference.markov.times import Clock
from qpruntime.inference.posterior import Posterior
from qpruntime.inference.schedules import Limits
from qpruntime.inference.sites import Sites
from qpruntime.kernels.state_space import StateSpace, state_space
from qpruntime.validation import finite, whole

__all__ = ["SeriesPosterior"]

#: Columns of rows, which are joined when they are looked at after rows were appended.
_JOINED = ("sites", "mean", "variance", "log_z", "rows", "order", "series")
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
    given : int
        How many were given.
    swept : int
        How many rows were swept: fewer than there are where `extend` has appended some.
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
    given: int
    swept: int
    how: Series = field(repr=False)
    marks: Array | None = field(repr=False, default=None)
    _pieces: tuple[Piece, ...] = field(repr=False, default=())
    _rows: tuple[Any, ...] = field(repr=False, default=())

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
        rows, place, offset = self._with(t_new, mean_new)
        rows.refresh()
        found = rows.report()[place]
        return found[:, 0] + offset, np.maximum(found[:, 1], 0.0) + rows.noise

    def sample(
        self,
        t_new: ArrayLike,
        n_samples: int = 1,
        random_state: int | np.random.Generator | None = None,
        mean_new: ArrayLike = 0.0,
    ) -> Array:
        """Draw the latent function at T times jointly, in O(N + T) a draw.

        Parameters
        ----------
        t_new, mean_new
            As for `predict`.
        n_samples : int
        random_state : int, Generator or None

        Returns
        -------
        ndarray, shape (n_samples, T)
            White noise of the kernel is in it, as in the variance of `predict`.
        """
        count = whole(n_samples, "n_samples", 1)
        rng = np.random.default_rng(random_state)
        rows, place, offset = self._with(t_new, mean_new)
        found = draw(rows, place, count, rng)
        return found + offset + np.sqrt(rows.noise) * rng.standard_normal(found.shape)

    def _with(self, t_new: ArrayLike, mean_new: ArrayLike) -> tuple[Rows, Any, Array]:
        """Return these rows with T that are not observed, where these are, and their mean."""
        new = self.clock.read(t_new, "t_new")
        offset = finite(mean_new, "mean_new")
        if offset.shape not in ((), new.shape):
            raise InputError(f"mean_new must have shape {new.shape}, got {offset.shape}")
        rows, place = with_times(self.series, self.space, self._sorted_sites(), new)
        return rows, place, offset

    def at_inputs(
        self, points: Array, mean: ArrayLike, crossed: Callable[[], tuple[Array, Array]]
    ) -> tuple[Array, Array]:
        """Predict as `qpruntime.inference.solver.Fitted` asks for."""
        return self.predict(points[:, 0], mean)

    @property
    def corrects(self) -> bool:
        """Whether there are corrections."""
        return False

    @property
    def width(self) -> int:
        """Nothing: a pass over all rows serves all points."""
        return 0

    def on(self, kernel: Kernel, X: Array, unscaled: Callable[[Array], Array]) -> SeriesPosterior:
        """Return this posterior with times in another unit, those of X, and the kernel in it."""
        space = state_space(kernel, self.space.approximate)
        series = replace(self.series, t=np.ascontiguousarray(X[self.order, 0]))
        return replace(self, kernel=kernel, series=series, space=space, how=series)

    def _sorted_sites(self) -> Sites:
        """Sites in order of time, about the prior mean."""
        tau, nu = self.sites.tau[self.order], self.sites.nu[self.order]
        return Sites(tau, nu - tau * self.series.prior)

    def extend(
        self, t: ArrayLike, y: ArrayLike, mean: ArrayLike = 0.0, weights: ArrayLike | None = None
    ) -> SeriesPosterior:
        """Posterior of these rows and of M more, which may be anywhere in time.

        Of later rows the cost is that of a few hundred rows before them, whatever N is, unless the
        kernel never forgets: as many are swept as keep the others as they were, to the tolerance.
        Rows in between are swept with all others, from the sites these have. Equal to inference
        from all rows to the tolerance of `infer_series`.

        Parameters
        ----------
        t, y : array-like, shape (M,)
            Times of the same kind, and observations; rows of NaN are dropped.
        mean : float or array-like, shape (M,)
            Prior mean of these rows.
        weights : array-like, shape (M,), optional

        Raises
        ------
        InputError
            If rows are not usable, or this posterior was pickled with a likelihood that was not.
        """
        more = read_more(self.clock, self.how.projector, t, y, mean, weights)
        if more.weights is None and self._appendable(more.t):
            return self._appended(more)
        own = Sites(self.sites.tau[self.order], self.sites.nu[self.order])
        series, start, sort = merged(self.series, own, more)
        n = self.order.size
        order = np.concatenate([self.order, n + np.arange(more.t.size)])[sort]
        rows = np.concatenate([self.rows, self.given + more.seen])
        placed = Placed(self.clock, order, rows, self.given + more.given)
        return SeriesPosterior(
            **concluded(self.kernel, self.space, series, self.limits, start, placed)
        )

    def _appendable(self, t: Array) -> bool:
        """Whether rows at these times are later than all others, and are swept with the last."""
        last = self._pieces[-1].t[-1] if self._pieces else self.series.t[-1]
        settled = self.status == "converged" and self.how.weights is None
        return settled and t.size > 0 and bool(t.min() >= last)

    def _appended(self, more: More) -> SeriesPosterior:
        """Posterior with later rows."""
        pieces = self._pieces or (self._whole(),)
        before = sum(piece.t.size for piece in pieces)
        new = more.piece(before, scaled=pieces[0].scale is not None)
        found = append(pieces, new, self.how, self.space, self.limits)
        later: SeriesPosterior = object.__new__(SeriesPosterior)
        later.__dict__.update(
            {name: value for name, value in vars(self).items() if name not in _JOINED},
            **ending(found.ended, self.log_evidence + found.rise, found.ended.worst),
            given=self.given + more.given,
            swept=found.swept,
            _pieces=found.pieces,
            _rows=(*(self._rows or (self.rows,)), self.given + more.seen),
        )
        return later

    def _whole(self) -> Piece:
        """These rows as one piece."""
        series = self.series
        sites = self._sorted_sites()
        marks = self.marks
        if marks is None:
            rows = Rows(series, self.space, sites)
            rows.run(ahead=True)
            marks = rows.marks(EVERY)
        return Piece(
            *(series.t, series.y, series.prior, series.weights, series.scale),
            *sites,
            self.mean[self.order],
            self.variance[self.order],
            self.log_z[self.order],
            self.order,
            marks,
        )

    def __getattr__(self, name: str) -> Any:
        # What rows appended have changed is joined when it is looked at.
        if name not in _JOINED or not self.__dict__.get("_pieces"):
            raise AttributeError(name)
        pieces = self._pieces
        found: Any
        if name == "rows":
            found = np.concatenate(self._rows)
        elif name == "order":
            found = joined_pieces(pieces, "index")
        elif name == "series":
            columns = ("t", "y", "prior", "weights", "scale")
            found = replace(self.how, **{c: joined_pieces(pieces, c) for c in columns})
        else:
            back = np.empty(self.order.size, dtype=np.intp)
            back[self.order] = np.arange(back.size)
            if name == "sites":
                tau, nu = joined_pieces(pieces, "tau"), joined_pieces(pieces, "nu")
                found = Sites(tau[back], (nu + tau * self.series.prior)[back])
            else:
                found = joined_pieces(pieces, name)[back]
        self.__dict__[name] = found
        return found

    def __getstate__(self) -> dict[str, Any]:
        joined = {name: getattr(self, name) for name in _JOINED}
        return {**vars(self), **joined, "_pieces": (), "_rows": (), "how": None, "marks": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, how=state["series"])

    def evidence_gradient(self) -> Array:  # type: ignore[override]
        """Gradient of EP's log evidence by the free log parameters, ``kernel.theta``, in O(N).

        Exact at an EP fixed point only, like that of the dense engine.
        """
        rows = Rows(self.series, self.space, self._sorted_sites())
        noise = 0.0
        if self.space.noises:
            rows.refresh()
            noise = noise_slope(rows, rows.report())
        else:
            rows.run(ahead=True)
        return self.space.gradient(rows.slope(), noise)

    def marginals(self, *args: Any, **options: Any) -> Any:
        """Refused: corrections are of the dense engine."""
        raise InputError(_DENSE.format("marginals"))

    def corrected_evidence(self) -> Any:
        """Refused: corrections are of the dense engine."""
        raise InputError(_DENSE.format("corrected_evidence"))
