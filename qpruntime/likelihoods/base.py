"""Contract of a likelihood: callbacks for kernels, validation, closed forms and rates."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._formatting import meant, spell
from qpruntime._pointers import (
    COORDINATES,
    FRAME,
    LANDMARK,
    MOMENTS,
    RAISED_FRAME,
    RAISED_MOMENTS,
    SPLIT,
    LatePointer,
    Pointer,
    at_power_one,
)
from qpruntime._typing import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.likelihoods import user_defined
from qpruntime.quadrature.sigma_star_kernels import (
    EXACT_POINT,
    RAISED_POINT,
    RULED_POINT,
    Frame,
    Functions,
)
from qpruntime.table_format.metadata import Axis

__all__ = [
    "ABSENT_COORDINATES",
    "ABSENT_LANDMARK",
    "ABSENT_SPLIT",
    "CLOSED",
    "CUT",
    "INTEGRATE",
    "NO_RULE",
    "STEP",
    "Likelihood",
    "ParameterRange",
    "Powers",
    "Rate",
    "RateLink",
    "Reduction",
    "ResponseDistribution",
    "normal_rule",
    "restore",
]

# --- `Likelihood`


class ResponseDistribution(Protocol):
    """Distribution of observations given f, with the methods of SciPy's frozen distributions."""

    def mean(self) -> Array:
        """Return the means."""

    def var(self) -> Array:
        """Return the variances."""

    def cdf(self, y: ArrayLike, /) -> Array:
        """Return P(Y <= y)."""

    def sf(self, y: ArrayLike, /) -> Array:
        """Return P(Y > y)."""

    def ppf(self, q: float, /) -> Array:
        """Return the least y with P(Y <= y) >= q."""

    def rvs(self, *, size: tuple[int, ...], random_state: np.random.Generator) -> Array:
        """Draw observations."""


def _fixed(*parts: ArrayLike) -> Array:
    """Join arrays of numbers into one that does not change."""
    theta = np.concatenate([np.empty(0), *(np.asarray(part, float).reshape(-1) for part in parts)])
    theta.flags.writeable = False
    return theta


@dataclass(frozen=True, eq=False)
class Powers:
    """Functions that integrate p(y|f)^power, power > 0, faster than the adaptive rule.

    Parameters
    ----------
    moments : Pointer, optional
        `Likelihood.moments` with the power as its last argument; NaN where it does not know.
        Without it they are summed over the nodes of the frame.
    frame : Pointer, optional
        `Likelihood.frame` with the power as its last argument, of one peak or one hard edge; width
        NaN where it has none.
    whole : bool
        Whether one of the two answers for every power: then the adaptive rule is never compiled.
    member : callable, optional
        ``member(parameters, power) -> (shape, scale, constant)`` or None: p(y|f)^power is
        exp(constant) times the density of (y - f)/scale of a family at unit scale, of that shape.
        Tables at unit scale serve every scale then: `qpruntime.projection.interpolation`.
    """

    moments: Pointer | None = None
    frame: Pointer | None = None
    whole: bool = True
    member: Callable[[Mapping[str, float], float], tuple[float, float, float] | None] | None = None

    @classmethod
    def from_kernels(
        cls,
        moments: Callable[..., Any] | None = None,
        frame: Callable[..., Any] | None = None,
        **options: Any,
    ) -> Powers:
        """Make them of kernels; `options` are the other parameters."""
        return cls(
            moments and Pointer(moments, RAISED_MOMENTS),
            frame and Pointer(frame, RAISED_FRAME),
            **options,
        )


_NO_POWERS = Powers(whole=False)


@dataclass(frozen=True)
class ParameterRange:
    """Default start and bounds of a parameter that is learnt.

    Attributes
    ----------
    start : float, optional
        Start of effects, series and noise about f; by default the value that the likelihood has.
    bounds : tuple of float, optional
        Bounds in estimators with a kernel. By default 1e4 times less and more than the start.
    effects : tuple of float, optional
        Bounds in models of effects. Without them the parameter is fixed there.
    series : tuple of float, optional
        Bounds in forecasts, by default those of effects.
    of_spread : bool
        Whether these numbers are multiples of the spread of the observations.
    rows : float
        With N rows the lower bound of effects is `rows`/N at least.
    """

    start: float | None = None
    bounds: tuple[float, float] | None = None
    effects: tuple[float, float] | None = None
    series: tuple[float, float] | None = None
    of_spread: bool = False
    rows: float = 0.0

    def around(self, start: float, spread: float | None) -> tuple[float, float]:
        """Return `bounds` in the parameter's units, or those about its start without a spread."""
        unit = spread if self.of_spread else 1.0
        if self.bounds is None or unit is None:
            return start / 1e4, start * 1e4
        return self.bounds[0] * unit, self.bounds[1] * unit


#: Ranges of the names that likelihoods share; one that needs others declares them.
_RANGES = {
    # Sites of noise are differences that cancel in double precision for narrower noise, so that
    # noise-free y have no fixed point.
    "scale": ParameterRange(0.3, bounds=(2e-3, 1e2), effects=(1e-4, 1e2), of_spread=True),
    # N counts of 0 let the density of a rate fall as its power -N r, for a dispersion r. It has to
    # be steeper than -1 for an expected rate.
    "dispersion": ParameterRange(1.0, effects=(1e-2, 1e6), rows=2.0),
    "zeros": ParameterRange(0.2, bounds=(1e-4, 0.99), series=(1e-4, 0.9999)),
    # Few degrees of freedom have no variance, and many are normal.
    "nu": ParameterRange(bounds=(1.0, 100.0)),
    "flip": ParameterRange(bounds=(1e-4, 0.4)),
}


@dataclass(frozen=True, eq=False, repr=False)
class Likelihood:
    """p(y|f) for one observation y and one latent value f.

    Parameters
    ----------
    name : str
        The name in the registry, in the API and on the command line.
    outcomes : str
        What y may be, in words, for messages and ``tablegen list``.
    split : Pointer
        The only required function. ``split(f, y, theta) -> (rest, curvature)`` with
        log p(y|f) = rest - curvature * f^2 / 2. ``(log p, 0)`` is always right; taking out a
        Gaussian factor keeps tails exact where log p is large and nearly quadratic.
    validate : callable
        Turns user observations into a float array, or raises `InputError`.
    moments : Pointer, optional
        ``moments(mu, sigma, y, theta) -> (log Z, mean, variance)`` of the tilted density for the
        cavity N(mu, sigma^2); sigma is a standard deviation, the last result a variance.
        Without it they are integrated.
    frame : Pointer, optional
        ``frame(mu, sigma, y, theta) -> (centre, width, refine, side)``: where quadrature is laid.
        side 0: around one peak; side +1 or -1: for a density that ends at ``centre`` and lies above
        or below it; abs(side) >= 2: for two peaks on either side of ``centre``. The maps are those
        of `qpruntime.quadrature.sigma_star_kernels.place`. refine in (0, 1] scales the step; 0 says
        that the tilted density is the normal of this centre and width, which a straight log p
        leaves of a cavity. Width NaN says that there is none for this y: a `rule` is needed then.
    theta : ndarray, optional
        What is passed through to every function; made from `parameters` if there are any.
    parameters : mapping, optional
        Values of the parameters by name, in the order in which `theta` begins with them. Others
        are set by `with_parameters`, or by `qpruntime.likelihoods.get`.
    limits : mapping, optional
        Least and largest value of every parameter.
    ranges : mapping, optional
        Default starts and bounds of learnt parameters, where they are not those of other
        likelihoods with a parameter of that name.
    derive : callable, optional
        ``derive(*parameters) -> tuple``: constants that follow the parameters in `theta`.
    mirror : bool
        Whether sigma*(mu, sigma, -y) = sigma*(-mu, sigma, y): one table then serves both labels.
    log_concave : bool
        Whether log p(y|f) is concave in f, so that no site precision can be negative.
    location : bool
        Whether log p(y|f) depends on f - y alone: one table then serves every y.
    even : bool
        Whether p(y|f) = p(y|-f) for every y, as of the square link: under a prior mean of 0 the
        sign of f is then unknown, and corrected marginals are those of abs(f).
    reduction : Reduction, optional
        Coordinates for a compact table.
    expected : Pointer, optional
        ``expected(mean, std, y, theta) -> (E, dE/dmean, -2 dE/dvariance)``, E = E log p(y|f)
        under f ~ N(mean, std^2). Method "vb" needs it.
    landmarks : Pointer, optional
        ``landmarks(y, theta, k) -> f``: points where log p(y|f) has a kink, a jump or a narrow
        peak, k = 0, 1, ..., then NaN. Adaptive quadrature looks for mass around them, as it does
        around 0 and y, and puts them on edges of its panels.
    powers : Powers, optional
        Moments and frames to any power, for weights and power EP. What has none is left to the
        adaptive rule. `moments` and `frame`, where they are not given, are these at power 1.
    rule : Pointer, optional
        ``rule(split, landmark, power, mu, sigma, y, theta) -> (status, log Z, mean, variance,
        sigma*)`` of the likelihood to any power, where neither frames nor the adaptive rule, which
        it replaces, are as good.
    recipe : tuple, optional
        Arguments of `from_log_prob`, by which it pickles.
    link : callable, optional
        Of labels -1 and +1: p(+1|f) for an array of f, where it rises with f. Intervals of that
        probability are those of f then.
    score : callable, optional
        Of labels -1 and +1: ``score(mean, variance)``, the normal quantile of p(+1) for latent
        values N(mean, variance), where that is closed.
    rate : RateLink, optional
        Of counts that are Poisson given f: how their rate follows from f.
    columns : int
        Numbers of one observation. Where it has several, `validate` returns them along the last
        axis, and functions get as y the number i of a row that stands behind the parameters:
        ``theta[n + columns * i]`` and on, n the number of parameters and derived constants.
    rows : ndarray, shape (R, columns), optional
        The observations that stand there; see `observing`.
    reach : callable, optional
        Of noise symmetric about f: ``reach(variance, tail, theta)``, shape (T, Q), the distance r
        with ``P(|y - mean| > r) = 2 tail`` for f ~ N(mean, variance), T variances and Q tails in
        (0, 1/2].
    given : callable, optional
        ``given(f, theta)``, the distribution of y for an array of f, as SciPy has it: frozen, with
        mean, var, cdf, sf, ppf and rvs that broadcast with f. Quantiles and draws of observations
        need it. Of several trials it takes their number as a third argument, which broadcasts.
    log_link : bool
        Whether the mean of an observation, but for zeros of their own, is e^f: an exposure, which
        multiplies it, then adds its logarithm to f.
    scale_family : bool
        Whether a factor of y only adds its logarithm to f: p(c y | f + log c) = p(y|f)/c. What a
        fit begins with then does not depend on the unit of y.

    See Also
    --------
    qpruntime.likelihoods.get, qpruntime.infer, qpruntime.GPRegressor

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import Likelihood, infer
    >>> def log_prob(f, y, theta):
    ...     return -np.logaddexp(0.0, -y * f / theta[0])
    ...
    >>> logistic = Likelihood.from_log_prob(
    ...     log_prob, name="own-logistic", theta={"scale": 0.5}, outcomes=[-1, 1], log_concave=True
    ... )
    >>> infer(np.eye(2), [1, -1], logistic, table="exact").mean.round(3).tolist()
    [0.606, -0.606]
    """

    name: str
    outcomes: str
    split: Pointer
    validate: Callable[[ArrayLike], Array]
    moments: Pointer | None = None
    frame: LatePointer | None = None
    theta: Array = field(default_factory=_fixed)
    mirror: bool = False
    log_concave: bool = True
    location: bool = False
    even: bool = False
    reduction: Reduction | None = None
    expected: Pointer | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)
    landmarks: Pointer | None = None
    powers: Powers | None = None
    rule: LatePointer | None = None
    recipe: tuple[tuple[str, Any], ...] | None = None
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    ranges: Mapping[str, ParameterRange] = field(default_factory=dict)
    derive: Callable[..., tuple[float, ...]] | None = None
    link: Callable[[Array], Array] | None = None
    score: Callable[[Array, Array], Array] | None = None
    rate: RateLink | None = None
    reach: Callable[[Array, Array, Array], Array] | None = None
    given: Callable[..., ResponseDistribution] | None = None
    columns: int = 1
    rows: Array | None = None
    log_link: bool = False
    scale_family: bool = False

    def __post_init__(self) -> None:
        if self.parameters:
            values = tuple(float(v) for v in self.parameters.values())
            object.__setattr__(self, "parameters", dict(zip(self.parameters, values, strict=True)))
            derived = self.derive(*values) if self.derive else ()
            object.__setattr__(self, "theta", _fixed(values + derived))
        if self.powers and self.powers.moments and self.moments is None:
            moments = Pointer(at_power_one(self.powers.moments), MOMENTS)
            object.__setattr__(self, "moments", moments)
        if self.powers and self.powers.frame and self.frame is None:
            frame = LatePointer(at_power_one(self.powers.frame), FRAME)
            object.__setattr__(self, "frame", frame)
        if self.frame is not None and not isinstance(self.frame, LatePointer):
            raise InputError(
                f"frame of {self.name!r} is a {type(self.frame).__name__}: give a LatePointer, "
                "because kernels compile it when they first call it"
            )
        if self.rows is not None:
            object.__setattr__(self, "theta", _fixed(self.theta, self.rows))
        elif self.theta.flags.writeable:
            # Kernels compile for arrays of this kind, and anew for another.
            object.__setattr__(self, "theta", _fixed(self.theta))

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={value:.3g}" for name, value in self.parameters.items())
        return f"<Likelihood {self.name}({numbers})>" if numbers else f"<Likelihood {self.name}>"

    @property
    def is_normal(self) -> bool:
        """True for normal noise, whose sites and slopes are known in closed form."""
        return self.name == "gaussian" and self.recipe is None

    @property
    def spelt(self) -> str:
        """Name and parameters in one string, which `qpruntime.likelihoods.get` reads."""
        return spell(self.name, self.parameters)

    def with_parameters(self, **values: float) -> Likelihood:
        """Return this likelihood with other values of some parameters.

        Raises
        ------
        InputError
            If there is no such parameter, or its value is outside its limits.
        """
        for name, value in values.items():
            if name not in self.parameters:
                known = ", ".join(self.parameters) or "it has none"
                raise InputError(
                    f"likelihood {self.name!r} has no parameter {name!r}"
                    f"{meant(name, self.parameters)}; its parameters: {known}"
                )
            low, high = self.limits.get(name, (-math.inf, math.inf))
            try:
                inside = low <= float(value) <= high and math.isfinite(value)
            except (TypeError, ValueError):
                inside = False
            if not inside:
                raise InputError(
                    f"{name} of likelihood {self.name!r} must be a number from {low:g} to "
                    f"{high:g}, got {value!r}"
                )
        merged = {**self.parameters, **{name: float(value) for name, value in values.items()}}
        if merged == self.parameters:
            return self
        if self.recipe is None:
            return replace(self, parameters=merged)
        recipe = {**dict(self.recipe), "theta": tuple(merged.values())}
        return restore(tuple(recipe.items()))

    def parameter_range(self, name: str) -> ParameterRange:
        """Return the default start and bounds of a parameter."""
        return self.ranges.get(name) or _RANGES.get(name, ParameterRange())

    def default_start(self, name: str, spread: float = 1.0) -> float:
        """Return the default start of a parameter, for observations of this spread."""
        known = self.parameter_range(name)
        if known.start is None:
            return self.parameters[name]
        return known.start * spread if known.of_spread else known.start

    def effect_bounds(self, name: str, spread: float, rows: float) -> tuple[float, float] | None:
        """Return bounds of a parameter in a model of effects of these rows; None if it is fixed."""
        known = self.parameter_range(name)
        if known.effects is None:
            return None
        low, high = (spread * v if known.of_spread else v for v in known.effects)
        return max(low, known.rows / rows), high

    def default_bounds(self, name: str, spread: float | None = None) -> tuple[float, float]:
        """Return bounds of a parameter under a kernel, which hold its value and keep its limits.

        `spread` is that of the observations, in the units of the parameter; without it, the bounds
        of a scale follow from its value.
        """
        value, (least, most) = self.parameters[name], self.limits.get(name, (0.0, math.inf))
        low, high = self.parameter_range(name).around(value, spread)
        # The limits leave room for the differences that slopes are made of.
        return max(min(low, value), least), min(max(high, value), most)

    @classmethod
    def from_log_prob(
        cls, log_prob: Callable[..., Any], *, name: str, **options: Any
    ) -> Likelihood:
        """Make a likelihood of any log density of your own.

        Parameters
        ----------
        log_prob : callable
            ``log_prob(f, y, theta)`` or ``log_prob(f, y)``: log p(y|f) for one f and one y, one
            real number; -inf where there is no density. What numba compiles is compiled at first
            use, with the globals it has then. Anything else (SciPy calls, objects, functions that
            only take arrays of f) is called in Python: about 30 times slower, which a message of
            the logger "qpruntime" says.
        name : str
            For messages and for tables.
        theta : array-like or dict
            Parameters, handed to `log_prob` as a float array; a dict also names them.
        outcomes : None, list or tuple (low, high)
            What y may be: any finite number, one of the numbers in the list, or an interval. A
            tuple of two numbers is an interval, a list of two is two values.
        validate : callable, optional
            Turns observations into a float array or raises `InputError`, instead of `outcomes`.
        log_concave : bool
            Whether log p(y|f) is concave in f for every y. Default False, which is always right;
            True keeps site precisions from being negative.
        mirror : bool
            Whether p(y|f) = p(-y|-f).
        location : bool
            Whether p(y|f) depends on f - y alone.
        even : bool
            Whether p(y|f) = p(y|-f) for every y: corrected marginals are then those of abs(f) where
            the prior mean is 0.
        parameters : dict or sequence of str, optional
            Names of the entries of `theta`, as a dict with their values.
        landmarks : sequence of float or callable, optional
            Values of f, or ``landmarks(y, theta)`` returning them, where log_prob has a kink, a
            jump or a narrow peak.

        Returns
        -------
        Likelihood
            For `infer`, `project` and ``tablegen.build``. It pickles if `log_prob` does.

        Raises
        ------
        InputError
            If `log_prob`, tried at a few f for every outcome, fails or returns anything but a real
            number; the message says what it returned.

        Notes
        -----
        An exception inside `log_prob` during inference ends it with a `NumericalError` that is
        raised from that exception.

        Examples
        --------
        >>> from qpruntime import project
        >>> from qpruntime.likelihoods import Likelihood
        >>> pointed = Likelihood.from_log_prob(
        ...     lambda f, y, theta: -abs(y - f) / theta[0],
        ...     name="pointed",
        ...     theta={"scale": 0.5},
        ...     log_concave=True,
        ...     landmarks=lambda y, theta: [y],
        ... )
        >>> mean, std = project(pointed, 0.0, 1.0, [1.0, 3.0])
        >>> mean.round(2)
        array([0.73, 1.79])
        """
        return cls(**user_defined.from_log_prob(log_prob, name=name, **options))

    def __copy__(self) -> Likelihood:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Likelihood:
        # Immutable, and told apart by identity: a clone of an estimator keeps its tables.
        return self

    @property
    def has_density(self) -> bool:
        """True if log p(y|f) can be computed; not so if all that is known is a table."""
        return self.split is not ABSENT_SPLIT

    @property
    def moves(self) -> bool:
        """True if log p(y|f) may be asked for as log p(0|f - y), which narrow peaks need."""
        # A user's own density is asked only for outcomes it has declared.
        everywhere = self.recipe is None or getattr(self.validate, "all_reals", False)
        return bool(self.location and everywhere)

    def observing(self, y: ArrayLike) -> tuple[Likelihood, Array]:
        """Return the likelihood, and observations as its functions take them: one number each.

        If an observation has several `columns`, the likelihood returned holds the distinct rows of
        `y`, and the outcomes are their numbers. A likelihood that holds rows accepts only their
        numbers.

        Raises
        ------
        InputError
            If there is no such observation.
        """
        if self.rows is not None:
            return self, np.asarray(y, dtype=float)
        outcomes = self.validate(y)
        if self.columns == 1:
            return self, outcomes
        rows, number = np.unique(outcomes.reshape(-1, self.columns), axis=0, return_inverse=True)
        return replace(self, rows=rows), number.astype(float).reshape(outcomes.shape[:-1])

    @property
    def free(self) -> Likelihood:
        """The likelihood without any rows, which takes observations as users give them."""
        if self.rows is None:
            return self
        return replace(self, rows=None, theta=self.theta[: -self.rows.size])

    def worded(self, y: float) -> str:
        """Return one number that `observing` gave as the observation it stands for."""
        if self.rows is None:
            return f"{y:g}"
        return "({})".format(", ".join(f"{value:g}" for value in self.rows[int(y)]))

    def log_prob(self, f: ArrayLike, y: ArrayLike) -> Array:
        """Log p(y|f), elementwise over the broadcast shapes of `f` and `y`.

        An observation of several `columns` has a last axis of its own.
        """
        likelihood = self
        if self.columns > 1:
            likelihood, y = self.observing(y)
        f, y = np.broadcast_arrays(np.asarray(f, float), np.asarray(y, float))
        out = np.empty(f.shape)
        for i in np.ndindex(f.shape):
            remainder, curvature = self.split(float(f[i]), float(y[i]), likelihood.theta)
            out[i] = remainder - 0.5 * curvature * f[i] ** 2
        return out

    def raise_failure(self, mu: float = 0.0, sigma: float = 0.0, y: float = 0.0) -> None:
        """Raise `NumericalError` if a user's function failed in a kernel, from what it raised.

        An interrupt is raised as it is. The cavity, if known, is where to look for the failure.
        """
        failure = self.split.failure(mu, sigma, y)
        if failure is None:
            return
        what, cause = failure
        if cause is not None and not isinstance(cause, Exception):
            raise cause
        raise NumericalError(
            f"log_prob of {self.name} {what}; it is asked for every real f: "
            "return -inf where there is no density"
        ) from cause

    def functions(self, powers: bool = False) -> Functions:
        """Return what kernels take of the likelihood.

        If there is no frame, or none for `powers` other than 1, the adaptive rule is needed and
        compiled.
        """
        self.split.reset()
        raised = self.powers if powers and self.powers else _NO_POWERS
        rule = NO_RULE
        if self.rule is not None:
            rule = self.rule.handle
        elif self.has_density and (self.frame is None or (powers and not raised.whole)):
            # Most users of the package never need it.
            from qpruntime.quadrature.adaptive_kernels import adaptive_rule, location_rule

            rule = (location_rule if self.moves else adaptive_rule).handle
        return Functions(
            self.theta,
            self.moments is not None,
            self.frame is not None,
            self.split.handle,
            self.moments.handle if self.moments else NO_RULE,
            Frame(
                self.frame.handle if self.frame else NO_RULE,
                rule,
                (self.landmarks or ABSENT_LANDMARK).handle,
                raised.moments.handle if raised.moments else NO_RULE,
                raised.frame.handle if raised.frame else NO_RULE,
                (RULED_POINT if self.frame is None else EXACT_POINT).handle,
                RAISED_POINT.handle,
            ),
        )

    def coordinates(self) -> Pointer:
        """Return the coordinates of the compact table, or a stand-in that has no row."""
        return self.reduction.coordinates if self.reduction else ABSENT_COORDINATES


def restore(recipe: tuple[tuple[str, Any], ...]) -> Likelihood:
    """Unpickle: the same likelihood, and so the same machine code, for equal recipes."""
    try:
        return _restored(recipe)
    except TypeError:  # something in it has no hash
        return Likelihood.from_log_prob(**dict(recipe))


@lru_cache(maxsize=64)
def _restored(recipe: tuple[tuple[str, Any], ...]) -> Likelihood:
    return Likelihood.from_log_prob(**dict(recipe))


# --- Rates of counts
#
# Given f a count is Poisson of rate g(f). An exposure multiplies the rate; that makes f another
# latent value, slope f + shift, of the same likelihood.

#: Densities are left out where they are below exp(-CUT) = 4e-18 of their largest value.
CUT = 40.0
#: Step of the trapezoid rule for a normal variable, in standard deviations, and for the logarithm
#: of a gamma variable of shape 1. The latter has the heaviest spectrum, with errors of
#: exp(-pi^2/step).
STEP = 0.25


@dataclass(frozen=True)
class Rate(ABC):
    """Distributions of T rates; the fields of subclasses are arrays of shape (T,)."""

    def __getitem__(self, index: object) -> Rate:
        return type(self)(*(getattr(self, field.name)[index] for field in fields(self)))

    @abstractmethod
    def tail(self, g: Array, upper: bool) -> Array:
        """P(rate < g), or P(rate > g), for g of shape (T, n)."""

    @abstractmethod
    def nodes(self) -> tuple[Array, Array]:
        """Rates, shape (T, n), and weights that sum to 1, for expectations."""

    @abstractmethod
    def narrower(self, shape: Array) -> NDArray[np.bool_]:
        """Return True for the rates that vary less than gamma variables of this shape."""

    @abstractmethod
    def roots(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Roots of two rates beyond which there is less than exp(-low) and exp(-high)."""


class RateLink(ABC):
    """The rate as a function of f; latent values are normal of the given mean and variance."""

    #: Name of the link in estimators.
    name: ClassVar[str]
    #: True if f and -f have the same rate, so that a prior mean of 0 leaves the sign open.
    two_signs: ClassVar[bool] = False
    #: True if the rate has tails like a gamma variable, which then replaces it in the most probable
    #: count (paper, Appendix H).
    like_gamma: ClassVar[bool] = False

    @abstractmethod
    def latent(self, rate: float) -> float:
        """Return the f of this rate, a positive number; of two the positive one."""

    @abstractmethod
    def spread(self, mean: float) -> float:
        """Return a standard deviation of f that makes rates vary by a factor of about 3."""

    @abstractmethod
    def exposed(self, exposure: Array) -> tuple[Array, Array]:
        """Slope and shift that turn f into the latent value of exposure times the rate."""

    @abstractmethod
    def mean_rate(self, mean: Array, variance: Array) -> Array:
        """Return the mean of the rate."""

    @abstractmethod
    def gamma(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Mean and scale of the gamma variable with mean and variance of the rate.

        Its scale is variance over mean, its shape mean over scale.
        """

    @abstractmethod
    def distribution(self, mean: Array, variance: Array) -> Rate:
        """Return the distribution of the rate."""


def normal_rule(mean: Array, std: Array) -> tuple[Array, Array]:
    """Nodes, shape (T, n), and weights of the trapezoid rule for normal variables."""
    reach = np.sqrt(2.0 * CUT)
    z = np.linspace(-reach, reach, 2 * int(np.ceil(reach / STEP)) + 1)
    weights = np.exp(-0.5 * z * z)
    return mean[:, None] + std[:, None] * z, weights / weights.sum()


# --- Coordinates of compact tables

#: Rows of `Reduction.coordinates` that no table has: integrate; u is the answer.
INTEGRATE, CLOSED = -1.0, -2.0


@dataclass(frozen=True, eq=False)
class Reduction:
    """Coordinates in which R = sigma*/sigma_EP is one small smooth function for every cavity.

    Parameters
    ----------
    coordinates : Pointer
        ``coordinates(mu, sigma, y, theta) -> (row, u, v)``. Arguments beyond the ends of an axis
        count as its end. Row `CLOSED` says that u is R itself; any other row that the table does
        not have is integrated.
    cavity : callable
        ``cavity(row, u, v) -> (mu, sigma, y)``: some cavity with these coordinates.
    u, v : Axis
        The axes of the shipped table; `u` is None for a function of `v` alone.
    outcomes : range
        The y of each row.
    largest : int
        The largest outcome the coordinates answer for.
    scale : Pointer, optional
        ``scale(mu, sigma, y, theta) -> (length, v, 0)``, if sigma*/length depends on the row and v
        alone, v being defined for every cavity. Dense grids are then expanded from one axis.
    """

    coordinates: Pointer
    cavity: Callable[[int, float, float], tuple[float, float, float]]
    v: Axis
    u: Axis | None = None
    outcomes: range = range(1, 2)
    largest: int = 1
    scale: Pointer | None = None


# --- Stand-ins for functions that a likelihood lacks


def _absent_split(f: float, y: float, theta: Array) -> tuple[float, float]:
    return np.nan, np.nan


def _absent_landmark(y: float, theta: Array, k: int) -> float:
    return np.nan


def _absent_coordinates(
    mu: float, sigma: float, y: float, theta: Array
) -> tuple[float, float, float]:
    return INTEGRATE, np.nan, np.nan


#: Address of a function that is never called.
NO_RULE = 0
ABSENT_LANDMARK = Pointer(_absent_landmark, LANDMARK)
ABSENT_SPLIT = Pointer(_absent_split, SPLIT)
ABSENT_COORDINATES = Pointer(_absent_coordinates, COORDINATES)
