"""`Optimizer`: ask where to evaluate, tell what came out, and what it recommends."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime._validation import choice, flag, number, path_of, whole
from qpruntime.bayesopt.acquisition import (
    NAMED,
    Acquisition,
    Awaited,
    Knowledge,
    acquisition_of,
    best_point,
    check_apart,
    complain,
    named,
)
from qpruntime.bayesopt.history import Failing, History, failing
from qpruntime.bayesopt.persistence import damage, read_saved, write_json
from qpruntime.bayesopt.search import design, largest_design, log_feasible, recommended
from qpruntime.bayesopt.space import (
    Points,
    Variable,
    kernels_of,
    name_of,
    noises_of,
    prices_of,
    space_of,
    spelt,
    told,
)
from qpruntime.bayesopt.surrogate import Models, Surrogate, SurrogateData
from qpruntime.errors import InputError
from qpruntime.execution.threads import sized

if TYPE_CHECKING:
    import pandas

__all__ = ["Optimizer"]


def _rows(opt: Optimizer, *_: object, **__: object) -> int:
    return len(opt._history.records)


class Optimizer:
    """Minimise f in a box subject to c_k >= 0, all expensive: by default predictive entropy search.

    Functions are modelled in units of the box and of their own spread. An evaluation may fail:
    whether it succeeds is then learnt as a constraint.

    Parameters
    ----------
    bounds : array-like, shape (d, 2)
        Low and high end of every variable; points are arrays.
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
    space : dict, optional
        Instead of bounds: names and what they may be, each a `Real`, an `Integer`, a `Category`, or
        a pair (low, high) of a real. Points are dicts of these names.
    maximise : bool
        Maximise f instead; it is told, predicted and kept as it is.
    acquisition : {"pesc", "ei", "thompson"} or callable
        What makes a point worth evaluating: predictive entropy search, expected improvement times
        the probability of feasibility, the minimiser of one draw of all functions, or your own
        (`qpruntime.bayesopt.Knowledge` is what it is handed). Only ``"pesc"`` takes `method`.

    Attributes
    ----------
    infeasible_draws : int
        Samples of the last `ask` whose functions had no feasible point.
    unsettled : int
        Samples of the last `ask` given which the functions' sites had not settled.

    Raises
    ------
    InputError
        If an argument is not usable, there is a file at `path` already, or there are more than
        21201 coordinates, every choice of a category counting as one.

    See Also
    --------
    qpruntime.bayesopt.Real, qpruntime.bayesopt.Integer, qpruntime.bayesopt.Category

    Examples
    --------
    >>> from qpruntime.bayesopt import Optimizer
    >>> opt = Optimizer([(0.0, 2.0)], constraints=1, noise=0.0, random_state=0)
    >>> for _ in range(8):
    ...     x = opt.ask()
    ...     opt.tell(x, f=x[0] ** 2, c=[x[0] - 0.5])
    >>> bool(abs(opt.recommend()[0] - 0.5) < 0.01)
    True

    Variables of other kinds have names:

    >>> from qpruntime.bayesopt import Category, Integer, Real
    >>> space = {"rate": Real(1e-5, 0.1, log=True), "layers": Integer(1, 8),
    ...          "activation": Category(["relu", "tanh"])}
    >>> opt = Optimizer(space=space, maximise=True, random_state=0)
    >>> sorted(opt.ask())
    ['activation', 'layers', 'rate']
    """

    def __init__(
        self,
        bounds: ArrayLike | None = None,
        constraints: int = 0,
        kernel: Kernel | Sequence[Kernel] | None = None,
        noise: float | Sequence[float | None] | None = None,
        method: str = "ep",
        n_samples: int = 10,
        *,
        n_initial: int | None = None,
        hyper: int = 0,
        random_state: int | None = None,
        path: str | os.PathLike[str] | None = None,
        space: Mapping[str, Variable | tuple[float, float]] | None = None,
        maximise: bool = False,
        acquisition: str | Acquisition = "pesc",
    ) -> None:
        self._space = space_of(bounds, space)
        self.low, self.high = self._space.box
        self.d = len(self.low)
        self.constraints = whole(constraints, "constraints", 0)
        self.maximise = flag(maximise, "maximise")
        self.method: Any = choice(method, "method", ("ep", "qp"))
        self.acquisition = acquisition
        self._acquisition = acquisition_of(acquisition)
        self.n_samples = whole(n_samples, "n_samples", 1)
        self.n_initial = whole(self.d + 1 if n_initial is None else n_initial, "n_initial", 1)
        largest_design(self._space, self.n_initial)
        self.hyper = whole(hyper, "hyper", 0)
        if random_state is None:
            random_state = int(np.random.SeedSequence().entropy) % 2**63  # type: ignore[arg-type]
        self.seed = whole(random_state, "random_state", 0)
        outputs = self.constraints + 1
        self._models = Models(self._space.d, kernels_of(kernel, outputs), noises_of(noise, outputs))
        self._history = History(outputs, self._space.give)
        clashes = {*self._history.columns({})} & {*(self._space.names or ())}
        if clashes:
            raise InputError(
                f"space has the names {sorted(clashes)}, which are those of results: rename them"
            )
        self._asked = 0
        self.infeasible_draws = self.unsettled = 0
        if path is not None and path_of(path, "path").exists():
            raise InputError(
                f"{path} exists: Optimizer.load(path, keep=True) goes on with it; "
                "remove it to begin anew"
            )
        self.path = path

    def __repr__(self) -> str:
        what = "maximises" if self.maximise else "minimises"
        names = self._space.names
        over = ", ".join(names or [f"{self.d} variable{'s' * (self.d != 1)}"])
        records = self._history.records
        counts = [
            f"{self.constraints} constraint{'s' * (self.constraints != 1)}",
            f"{len(records)} evaluation{'s' * (len(records) != 1)}",
            f"{len(self._history.pending())} pending",
            f"{sum(bool(r.failed) for r in records)} failed",
        ]
        setting = "" if self.acquisition == "pesc" else f"acquisition={named(self.acquisition)!r}, "
        return (
            f"<Optimizer: {what} over {over}; {', '.join(counts)}; {setting}"
            f"method={self.method!r}, random_state={self.seed}>"
        )

    # Asking

    @sized(_rows)
    def ask(
        self, n: int | None = None, *, decoupled: bool = False, cost: ArrayLike | None = None
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
        x : ndarray, shape (d,) or (n, d); a dict or a list of dicts if variables have names
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
        if decoupled:
            check_apart(self.acquisition)
        proposals: list[tuple[Array, int]] = []
        most = 0
        with self._change():
            for _ in range(count):
                proposals.append(self._ask(bool(decoupled), prices))
                most = max(most, self.unsettled)
            complain(most, self.n_samples)
        X, which = [self._space.give(x) for x, _ in proposals], [j for _, j in proposals]
        if n is None:
            return (X[0], which[0]) if decoupled else X[0]
        several = np.array(X) if self._space.names is None else X
        return (several, which) if decoupled else several

    def _ask(self, decoupled: bool, prices: Array) -> tuple[Array, int]:
        outputs = self.constraints + 1
        rng = np.random.default_rng([self.seed, 1 + self._asked])
        self.infeasible_draws = self.unsettled = 0
        # Points that were told unasked take the place of points of the design.
        begun = self._history.begun() if decoupled else outputs * len(self._history.records)
        if begun < outputs * self.n_initial:
            first = design(self._space, self.n_initial, np.random.default_rng([self.seed, 0]))
            u, which = first[begun // outputs], begun % outputs
        else:
            known = self._knowledge(prices if decoupled else None, rng)
            u, which = best_point(self._acquisition, known)
            if known.sampled is not None:
                self.infeasible_draws = known.sampled.infeasible
                self.unsettled = sum(not post.converged for post in known.sampled.posts)
        x = self._space.from_unit(u[None])[0]
        self._history.add(x, [which] if decoupled else range(outputs))
        self._asked += 1
        return x, which

    def _knowledge(self, prices: Array | None, rng: np.random.Generator) -> Knowledge:
        """Return what an acquisition is handed."""
        failing_model = failing(self._history)
        data = self._known(failing_model)
        groups = self._models.groups(data, self.hyper, rng)
        self._models.remember(data)
        waiting, awaited = self._history.pending(), None
        if waiting:
            at = self._space.to_unit(np.array([r.x for r in waiting]))
            awaited = Awaited(at, [failing_model.rows(r.awaited) for r in waiting])
        return Knowledge(
            groups, failing_model, prices, awaited, self._space, self.n_samples, self.method, rng
        )

    # Telling

    def tell(
        self,
        x: object,
        f: float | None = None,
        c: ArrayLike | None = None,
        *,
        id: str | int | None = None,
    ) -> None:
        """Say what came out at x, asked for or not.

        Parameters
        ----------
        x : array-like, shape (d,), or a dict if variables have names
        f : float, optional
            The objective; left out if it is not evaluated (yet), NaN if it failed.
        c : array-like, shape (K,), or a number if K = 1; optional
            The constraints, feasible at 0 and above; NaN if one failed, None in a list if it is not
            evaluated (yet). NaN says nothing of a function that was not asked for, if another is
            told. If nothing is told at all, everything that was asked for has failed.
        id : str or int, optional
            Of the evaluation. Telling the same under the same id again changes nothing; without
            one, values go to the pending evaluation of this point, or to a new one.

        Raises
        ------
        InputError
            If x is outside the box, a value is infinite, or the id is that of something else.
        """
        place, name = self._space.take(x), name_of(id)
        values, left_out = told(f, c, self.constraints)
        with self._change():
            self._history.tell(place, values, left_out, name)

    def expect(self, x: object, *, id: str | int | None = None) -> None:
        """Say that all functions are being evaluated at x, which was not asked for."""
        place, name = self._space.take(x), name_of(id)
        if name is not None and name in self._history:
            raise InputError(f"id {name!r} is taken: use another id")
        with self._change():
            self._history.add(place, range(self.constraints + 1), name)

    def forget(self, id: str | int) -> None:
        """Await a pending evaluation no longer; one that failed is told instead, without values."""
        with self._change():
            self._history.forget(str(id))

    @property
    def pending(self) -> dict[str, Any]:
        """Points that are asked for and not told, by id."""
        return {r.id: self._space.give(r.x) for r in self._history.pending()}

    # Data and models

    def _known(self, failing: Failing) -> list[SurrogateData]:
        """Return what is known of all functions, then of their success."""
        models = []
        for j in range(self.constraints + 1):
            X, y = self._history.known(j)
            U = self._space.to_unit(X.reshape(len(y), self.d))
            models.append(SurrogateData(j, U, -y if self.maximise and j == 0 else y))
        for j, X, y in failing.data:
            models.append(SurrogateData(self.constraints + 1 + j, self._space.to_unit(X), y))
        return models

    def _modelled(self) -> tuple[list[SurrogateData], list[Surrogate]]:
        """Return data on all functions and their success, and the most probable models of them."""
        data = self._known(failing(self._history))
        if not any(len(y) for _, _, y in data[: self.constraints + 1]):
            raise InputError("nothing is observed yet: tell at least one evaluation first")
        return data, self._models.groups(data, 0, np.random.default_rng(0))[0]

    @sized(_rows)
    def surrogates(self) -> list[Surrogate]:
        """Functions as they are modelled, the objective first, in units of box and spread.

        Variables go from 0 to 1, a constraint is divided by the standard deviation of its
        observations and keeps its zero, the objective also loses their mean; one that is maximised
        has the other sign.
        """
        return self._modelled()[1][: self.constraints + 1]

    @sized(_rows)
    def predict(self, X: Points) -> tuple[Array, Array]:
        """Mean and standard deviation of (f, c_1, ..., c_K) at X, both (K + 1, T), latent."""
        U = self._space.to_unit(self._space.take_all(X))
        data, surrogates = self._modelled()
        means, stds = [], []
        for known, s in zip(data[: self.constraints + 1], surrogates, strict=False):
            centre, spread = self._models.scaled(known)[2:]
            mean, variance = s.predict(U)
            means.append(centre + spread * mean)
            stds.append(spread * np.sqrt(variance))
        if self.maximise:
            means[0] = -means[0]
        return np.array(means), np.array(stds)

    @sized(_rows)
    def probability(self, X: Points) -> Array:
        """Probability that all constraints hold, shape (T,); they are taken as independent.

        If evaluations have failed, that one succeeds is among them.
        """
        U = self._space.to_unit(self._space.take_all(X))
        return np.asarray(np.exp(log_feasible(self._modelled()[1], U)))

    @sized(_rows)
    def recommend(self, confidence: float = 0.95) -> Any:
        """Return the point of best mean objective whose constraints hold with this probability.

        The point need not have been evaluated. `confidence` is the probability, under the models,
        that all constraints hold there together. A constraint that is active at the optimum keeps
        the recommendation away from the boundary, by a distance that shrinks with the model's
        uncertainty. An evaluated point that met its constraints may therefore have a better
        objective; `best_evaluated` returns it. A lower `confidence` comes closer to the boundary.

        If no point reaches `confidence`, the point where the constraints hold most probably is
        returned. If evaluations have failed, success is a constraint too.
        """
        wanted = number(confidence, "confidence", above=0.0, most=1.0)
        data, surrogates = self._modelled()
        rng = np.random.default_rng([self.seed, 2**32])
        known = np.vstack([U for _, U, _ in data])
        u = recommended(surrogates, known, wanted, rng, self._space)
        return self._space.give(self._space.from_unit(u[None])[0])

    def best_evaluated(self) -> tuple[Any, float] | None:
        """Return the evaluated point of best observed objective that met all constraints.

        Observed values are compared as they were told, with their noise and without the models.

        Returns
        -------
        tuple of point and float, or None
            The point as `ask` gives it and its objective. None if no evaluation has told the
            objective and all constraints, each of which was at least 0.
        """
        feasible = [
            r
            for r in self._history.records
            if not r.failed and r.known(0) and all(c >= 0.0 for c in r.values[1:])
        ]
        if not feasible:
            return None
        sign = -1.0 if self.maximise else 1.0
        best = min(feasible, key=lambda r: sign * r.values[0])
        return self._space.give(np.array(best.x)), best.values[0]

    # Keeping

    def to_dataframe(self) -> pandas.DataFrame:
        """Return the evaluations as a pandas DataFrame; `columns` does without pandas."""
        try:
            import pandas
        except ImportError as error:
            raise InputError("a data frame needs pandas; columns() does without") from error
        return pandas.DataFrame(self.columns())

    def columns(self) -> dict[str, list[Any]]:
        """Return the evaluations by columns: id, x0, ..., f, c1, ..., what is awaited, what failed.

        Variables with names have columns of these names; "failed" is there once something has.
        """
        return self._history.columns(self._space.columns([r.x for r in self._history.records]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a file of JSON, which is replaced whole."""
        write_json(
            path,
            {
                "space": self._space.state(),
                "constraints": self.constraints,
                "maximise": self.maximise,
                "kernels": [spelt(k) for k in self._models.kernels],
                "noise": self._models.noises,
                "method": self.method,
                "acquisition": named(self.acquisition),
                "n_samples": self.n_samples,
                "n_initial": self.n_initial,
                "hyper": self.hyper,
                "seed": str(self.seed),
                "asked": self._asked,
                "infeasible_draws": self.infeasible_draws,
                "unsettled": self.unsettled,
                "models": self._models.state(self._known(failing(self._history))),
                "evaluations": self._history.state(),
            },
        )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        kernel: Kernel | Sequence[Kernel] | None = None,
        keep: bool = False,
        acquisition: str | Acquisition | None = None,
    ) -> Optimizer:
        """Go on from a file of `save` or of ``path=``: the next `ask` is what it would have been.

        Parameters
        ----------
        path : path
        kernel : optional
            The kernel that the optimisation was begun with, if it was given one.
        keep : bool
            Go on writing to the same file.
        acquisition : callable, optional
            The acquisition that the optimisation was begun with, if it was given one of its own.

        Raises
        ------
        InputError
            If there is no such file, it is damaged, or kernel or acquisition are others.
        """
        saved = read_saved(path)
        chosen = saved.acquisition if acquisition is None else acquisition
        if named(chosen) != saved.acquisition or (acquisition is None and chosen not in NAMED):
            raise InputError(
                f"{path} was begun with acquisition={saved.acquisition}: pass the same acquisition"
            )
        kernels = kernels_of(kernel, saved.settings["constraints"] + 1)
        if [spelt(k) for k in kernels] != saved.kernels:
            raise InputError(f"{path} was begun with kernel={saved.kernels}: pass the same kernel")
        space, names = saved.space, saved.space.names
        with damage(path):
            opt = cls(
                np.column_stack(space.box) if names is None else None,
                kernel=kernel,
                space=None if names is None else dict(zip(names, space.variables, strict=True)),
                acquisition=chosen,
                **saved.settings,
            )
            opt._asked = saved.asked
            opt.infeasible_draws, opt.unsettled = saved.infeasible_draws, saved.unsettled
            opt._history.restore(saved.evaluations)
            opt._models.restore(saved.models, opt._known(failing(opt._history)))
        opt.path = path if keep else None
        return opt

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Write the changes made inside to the file, if there is one; all of them or none."""
        records, n_asked, last = self._history.state(), self._asked, list(self._models.last)
        counts = self.infeasible_draws, self.unsettled
        try:
            yield
            if self.path is not None:
                self.save(self.path)
        except BaseException:
            self._history.restore(records)
            self._asked, self._models.last = n_asked, last
            self.infeasible_draws, self.unsettled = counts
            raise
