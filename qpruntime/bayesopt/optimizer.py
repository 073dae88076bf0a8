"""`Optimizer`: ask where to evaluate, tell what came out, and what it recommends."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.bayesopt.arguments import kernels_of, noises_of, outcome, prices_of
from qpruntime.bayesopt.asking import Awaited, complain, given_minimisers, most_telling
from qpruntime.bayesopt.box import box
from qpruntime.bayesopt.conditioning import Conditioned
from qpruntime.bayesopt.history import History, read_json, write_json
from qpruntime.bayesopt.minimisers import sobol
from qpruntime.bayesopt.models import Models
from qpruntime.bayesopt.recommending import log_feasible, recommended
from qpruntime.bayesopt.surrogate import Surrogate, points
from qpruntime.errors import InputError
from qpruntime.execution.blas_threads import sized
from qpruntime.validation import choice, number, path_of, whole

__all__ = ["Optimizer"]


def _rows(opt: Any, *_: Any, **__: Any) -> int:
    return len(opt._history.records)


class Optimizer:
    """Minimise f in a box subject to c_k >= 0, all expensive, by predictive entropy search.

    Variables are continuous. Functions are modelled in units of the box and of their own spread.

    Parameters
    ----------
    bounds : array-like, shape (d, 2)
        Low and high end of every variable.
    constraints : int
        K, how many c_k there are; 0 is plain predictive entropy search.
    kernel : None, scikit-learn kernel, or a list of K + 1
        In units of the box (every variable from 0 to 1) and of the observations' spread; sums of
        RBF, Matern and WhiteKernel. None is a constant times RBF with a length-scale a variable,
        ``"matern"`` the same with Matern 5/2, both with a weak prior.
    noise : None, float or a list of K + 1
        Variance of the observations' noise; None learns it.
    method : {"ep", "qp"}
        How the functions are conditioned on a minimiser.
    n_samples : int
        Samples of the minimiser.
    n_initial : int, optional
        Points of the Sobol design that comes first, d + 1 by default.
    hyper : int
        0 takes the most probable hyper-parameters; n takes n draws from their posterior.
    random_state : int, optional
        The same number and the same calls give the same points. None takes one from the system,
        which is kept.
    path : path, optional
        A new file, which is rewritten whole at every `ask` and `tell`; `load` goes on with one.

    Attributes
    ----------
    infeasible_draws : int
        Samples of the last `ask` whose functions had no feasible point.
    unsettled : int
        Samples of the last `ask` given which the functions' sites had not settled.

    Raises
    ------
    InputError
        If an argument is not usable, or there is a file at `path` already.

    Examples
    --------
    >>> from qpruntime.bayesopt import Optimizer
    >>> opt = Optimizer([(0.0, 2.0)], constraints=1, noise=0.0, random_state=0)
    >>> for _ in range(8):
    ...     x = opt.ask()
    ...     opt.tell(x, f=x[0] ** 2, c=[x[0] - 0.5])
    >>> bool(abs(opt.recommend()[0] - 0.5) < 0.01)
    True
    """

    def __init__(
        self,
        bounds: ArrayLike,
        constraints: int = 0,
        kernel: Any = None,
        noise: float | Sequence[float | None] | None = None,
        method: str = "ep",
        n_samples: int = 10,
        *,
        n_initial: int | None = None,
        hyper: int = 0,
        random_state: int | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self._box = box(bounds)
        self.low, self.high = self._box
        self.d = len(self.low)
        self.constraints = whole(constraints, "constraints", 0)
        self.method: Any = choice(method, "method", ("ep", "qp"))
        self.n_samples = whole(n_samples, "n_samples", 1)
        self.n_initial = whole(self.d + 1 if n_initial is None else n_initial, "n_initial", 1)
        self.hyper = whole(hyper, "hyper", 0)
        if random_state is None:
            random_state = int(np.random.SeedSequence().entropy) % 2**63  # type: ignore[arg-type]
        self.seed = whole(random_state, "random_state", 0)
        outputs = self.constraints + 1
        self._models = Models(self.d, kernels_of(kernel, outputs), noises_of(noise, outputs))
        self._history = History(outputs)
        self._asked = 0
        self.infeasible_draws = self.unsettled = 0
        if path is not None and path_of(path, "path").exists():
            raise InputError(
                f"{path} exists: Optimizer.load(path, keep=True) goes on with it; "
                "remove it to begin anew"
            )
        self.path = path

    # Asking

    @sized(_rows)
    def ask(
        self,
        n: int | None = None,
        *,
        decoupled: bool = False,
        cost: ArrayLike | None = None,
    ) -> Any:
        """Return where to evaluate next; it is pending until told.

        Parameters
        ----------
        n : int, optional
            Ask for so many points at once.
        decoupled : bool
            Ask for one function at a point, not for all.
        cost : array-like, shape (K + 1,), optional
            Of evaluating each function; gains are divided by it.

        Returns
        -------
        x : ndarray, shape (d,) or (n, d)
        which : int or list of int
            Only if `decoupled`: 0 is the objective, k the k-th constraint.

        Raises
        ------
        InputError
            If an argument is not usable. After any exception, nothing more is pending than before.

        Warns
        -----
        ConvergenceWarning
            If most samples of the minimiser had not settled, which makes the gains rough.
        """
        count = 1 if n is None else whole(n, "n", 1)
        prices = prices_of(cost, self.constraints + 1)
        found, most = [], 0
        with self._change():
            for _ in range(count):
                found.append(self._ask(bool(decoupled), prices))
                most = max(most, self.unsettled)
            complain(most, self.n_samples)
        X, which = np.array([x for x, _ in found]), [j for _, j in found]
        if n is None:
            return (X[0], which[0]) if decoupled else X[0]
        return (X, which) if decoupled else X

    def _ask(self, decoupled: bool, prices: Array) -> tuple[Array, int]:
        outputs = self.constraints + 1
        rng = np.random.default_rng([self.seed, 1 + self._asked])
        self.infeasible_draws = self.unsettled = 0
        # What was told unasked takes the place of points of the design.
        begun = self._history.begun() if decoupled else outputs * len(self._history.records)
        if begun < outputs * self.n_initial:
            design = sobol(self.n_initial, self.d, np.random.default_rng([self.seed, 0]))
            u, which = design[begun // outputs], begun % outputs
        else:
            posts = self._conditioned(rng)
            u, which = most_telling(posts, prices if decoupled else None, rng)
        x = self._box.from_unit(u)
        self._history.add(x, [which] if decoupled else range(outputs))
        self._asked += 1
        return x, which

    def _conditioned(self, rng: np.random.Generator) -> list[Conditioned]:
        """Functions conditioned on samples of the minimiser, pending outcomes imagined."""
        groups = self._models.groups(self._data(), self.hyper, rng)
        self._models.remember()
        waiting, awaited = self._history.pending(), None
        if waiting:
            at = self._box.to_unit(np.array([r.x for r in waiting]))
            awaited = Awaited(at, [r.awaited for r in waiting])
        given = given_minimisers(groups, awaited, self.n_samples, self.method, rng)
        self.infeasible_draws = given.infeasible
        self.unsettled = sum(not post.converged for post in given.posts)
        return given.posts

    # Telling

    def tell(
        self,
        x: ArrayLike,
        f: float | None = None,
        c: ArrayLike | None = None,
        *,
        id: str | int | None = None,
    ) -> None:
        """Say what came out at x, asked for or not.

        Parameters
        ----------
        x : array-like, shape (d,)
        f : float, optional
            The objective; NaN or left out: not evaluated.
        c : array-like, shape (K,), optional
            The constraints, feasible at 0 and above; NaN: not evaluated.
        id : str or int, optional
            Of the evaluation. Telling the same under the same id again changes nothing; without
            one, values go to the pending evaluation of this point, or to a new one.

        Raises
        ------
        InputError
            If x is outside the box, a value is infinite, or the id is that of something else.
        """
        place = self._box.inside(x)
        values = np.full(self.constraints + 1, np.nan)
        if f is not None:
            values[0] = outcome(f, "f", ())
        if c is not None:
            values[1:] = outcome(c, "c", (self.constraints,))
        with self._change():
            self._history.tell(place, values, None if id is None else str(id))

    def expect(self, x: ArrayLike, *, id: str | int | None = None) -> None:
        """Say that all functions are being evaluated at x, which was not asked for."""
        place = self._box.inside(x)
        if id is not None and str(id) in self._history:
            raise InputError(f"id {str(id)!r} is taken: use another id")
        with self._change():
            self._history.add(place, range(self.constraints + 1), None if id is None else str(id))

    def forget(self, id: str | int) -> None:
        """Await a pending evaluation no longer."""
        with self._change():
            self._history.forget(str(id))

    @property
    def pending(self) -> dict[str, Array]:
        """Points that are asked for and not told, by id."""
        return {r.id: np.array(r.x) for r in self._history.pending()}

    # What is known

    def _data(self) -> list[tuple[Array, Array]]:
        found = []
        for j in range(self.constraints + 1):
            X, y = self._history.known(j)
            found.append((self._box.to_unit(X.reshape(len(y), self.d)), y))
        return found

    @sized(_rows)
    def surrogates(self) -> list[Surrogate]:
        """Functions as they are modelled, the objective first, in units of box and spread.

        Variables go from 0 to 1, a constraint is divided by the standard deviation of its
        observations and keeps its zero, the objective also loses their mean.
        """
        data = self._data()
        if not any(len(y) for _, y in data):
            raise InputError("nothing is observed yet: tell at least one evaluation first")
        return self._models.groups(data, 0, np.random.default_rng(0))[0]

    @sized(_rows)
    def predict(self, X: ArrayLike) -> tuple[Array, Array]:
        """Mean and standard deviation of (f, c_1, ..., c_K) at X, both (K + 1, T), latent."""
        U = self._box.to_unit(points(X, "X", self.d))
        means, stds = [], []
        for j, (s, (_, y)) in enumerate(zip(self.surrogates(), self._data(), strict=True)):
            centre, spread = self._models.scaled(j, U, y)[2:]
            mean, variance = s.predict(U)
            means.append(centre + spread * mean)
            stds.append(spread * np.sqrt(variance))
        return np.array(means), np.array(stds)

    @sized(_rows)
    def probability(self, X: ArrayLike) -> Array:
        """Probability that all constraints hold, shape (T,); they are taken as independent."""
        U = self._box.to_unit(points(X, "X", self.d))
        return np.asarray(np.exp(log_feasible(self.surrogates(), U)))

    @sized(_rows)
    def recommend(self, confidence: float = 0.95) -> Array:
        """Return the point of least mean objective whose constraints hold with this probability.

        If there is none, the point where they hold most probably.
        """
        wanted = number(confidence, "confidence", above=0.0, most=1.0)
        surrogates = self.surrogates()
        rng = np.random.default_rng([self.seed, 2**32])
        known = np.vstack([U for U, _ in self._data()])
        return self._box.from_unit(recommended(surrogates, known, wanted, rng))

    # Keeping

    def to_dataframe(self) -> Any:
        """Return the evaluations as a pandas DataFrame; `columns` does without pandas."""
        try:
            import pandas as pd
        except ImportError as error:
            raise InputError("a data frame needs pandas; columns() does without") from error
        return pd.DataFrame(self.columns())

    def columns(self) -> dict[str, list[Any]]:
        """The evaluations by columns: id, x0, ..., f, c1, ..., and what is awaited."""
        return self._history.columns()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a file of JSON, which is replaced whole."""
        last = self._models.last
        write_json(
            path,
            {
                "format": "qpruntime-bayesopt-1",
                "bounds": np.column_stack([self.low, self.high]).tolist(),
                "constraints": self.constraints,
                "kernels": [repr(k) for k in self._models.kernels],
                "noise": self._models.noises,
                "method": self.method,
                "n_samples": self.n_samples,
                "n_initial": self.n_initial,
                "hyper": self.hyper,
                "seed": str(self.seed),
                "asked": self._asked,
                "last": [None if p is None else p.tolist() for p in last],
                "evaluations": self._history.state(),
            },
        )

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, kernel: Any = None, keep: bool = False
    ) -> Optimizer:
        """Go on from a file of `save` or of ``path=``: the next `ask` is what it would have been.

        Parameters
        ----------
        path : path
        kernel : optional
            The kernel that the optimisation was begun with, if it was given one.
        keep : bool
            Go on writing to the same file.
        """
        state = read_json(path)
        try:
            opt = cls(
                state["bounds"],
                state["constraints"],
                kernel,
                state["noise"],
                state["method"],
                state["n_samples"],
                n_initial=state["n_initial"],
                hyper=state["hyper"],
                random_state=int(state["seed"]),
            )
            if [repr(k) for k in opt._models.kernels] != state["kernels"]:
                raise InputError(
                    f"{path} was begun with kernel={state['kernels']}: pass the same kernel"
                )
            opt._asked = int(state["asked"])
            opt._models.last = [None if p is None else np.array(p) for p in state["last"]]
            opt._history.restore(state["evaluations"])
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: damaged: {error!r}") from error
        opt.path = path if keep else None
        return opt

    @contextmanager
    def _change(self) -> Iterator[None]:
        """What changes inside is written to the file, if there is one; all of it or nothing."""
        records, asked, last = self._history.state(), self._asked, list(self._models.last)
        try:
            yield
            if self.path is not None:
                self.save(self.path)
        except BaseException:
            self._history.restore(records)
            self._asked, self._models.last = asked, last
            raise
