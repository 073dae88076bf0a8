"""Corrected posterior: marginals and evidence beyond the Gaussian approximation."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np

from qpruntime._typing import Array
from qpruntime.errors import CorrectionWarning, InputError, SamplingWarning, warn
from qpruntime.inference.corrections.density_grid import Densities, moments, normalised
from qpruntime.inference.corrections.ep_fact import Targets, log_densities
from qpruntime.inference.corrections.ep_fixed_point import (
    FixedPoint,
    NormalApproximation,
    fold,
    needed,
)
from qpruntime.inference.corrections.linear_response import (
    Response,
    pair_sums,
    respond,
    tilted_variances,
)
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.inference.corrections.slice_sampler import (
    CHAINS,
    Chains,
    densities_of,
    mixing,
    run_chains,
)

__all__ = [
    "CORRECTIONS",
    "FAR_APART",
    "Corrected",
    "CorrectedEvidence",
    "Correction",
    "MarginalPoints",
    "chained_shift",
    "disagreement",
    "on_chains",
    "on_evidence",
    "on_means",
    "on_variances",
    "sampled",
]

# --- Corrections of one posterior

Correction = Literal["blend", "fact", "tilt", "sample"]
CORRECTIONS = get_args(Correction)

#: Weight of the linear response in the log variance; FACT has the remaining weight.
_RESPONSE = 2.0 / 3.0

#: Number of sites up to which `words` runs short chains if a posterior may have several peaks,
#: where they take less time than the other corrections; and steps of each chain.
_CHAINED, _SHORT = 100, 2000

#: Largest number of sites for "tilt".
_MOST = 200
#: Largest number of draws times sites to keep; and the R-hat up to which chains count as mixed.
_KEPT, _RHAT_LIMIT = 4_000_000, 1.05
#: A variance at new points below this share of the prior variance comes from rounding.
_LEAST = 1e-14

_NO_RESPONSE = 'EP\'s fixed point has no linear response here: these are the marginals of "fact"'
_BESIDE = "EP was run beside the posterior's own method: corrections start from its fixed point"
_FOLDED = (
    "the likelihood does not know the sign of f, and the prior mean is 0: these are marginals of "
    "|f|"
)
_ASIDE = (
    "the likelihood does not know the sign of f, and the prior mean is 0: the posterior has two "
    "mirrored peaks, and a normal between them describes neither; marginals() has those of |f|, "
    "and the log evidence of both peaks together is {:.6g}; or give a prior mean away from 0"
)


class CorrectedEvidence(NamedTuple):
    """Corrected log evidence, and the size of all fourth-order terms, of which half are added.

    See Also
    --------
    qpruntime.Posterior, qpruntime.inference.corrections.marginals.CorrectedMarginals

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import infer
    >>> x = np.linspace(-1.0, 1.0, 6)
    >>> K = 4.0 * np.exp(-2.0 * (x[:, None] - x) ** 2)
    >>> post = infer(K, np.sign(x), "probit", "ep")
    >>> value, spread = post.corrected_evidence()
    >>> round(post.log_evidence, 3), round(value, 3), spread < 0.001
    (-3.265, -3.255, True)
    """

    value: float
    spread: float


class MarginalPoints(NamedTuple):
    """Points of marginals: T new ones, or all sites if `K_star` is None.

    Prior covariances with the sites (T, N), prior variance and prior mean, each (T,).
    """

    K_star: Array | None
    variance: Array
    mean: Array


class Corrected:
    """Corrections of a posterior, from EP's fixed point."""

    def __init__(self, fixed_point: FixedPoint) -> None:
        self.found = fixed_point

    @cached_property
    def evidence(self) -> CorrectedEvidence:
        """EP's log evidence, and its correction by sums over pairs of sites."""
        fixed_point = self.found
        shift, spread = pair_sums(fixed_point.V, fixed_point.fixed, fixed_point.tilted.hermite)
        return CorrectedEvidence(fixed_point.log_evidence + shift, spread)

    @cached_property
    def response(self) -> Response | None:
        """Linear response of the fixed point; None if it has no response."""
        fixed_point = self.found
        return respond(fixed_point.V, fixed_point.fixed, fixed_point.tilted.hermite)

    def words(self) -> tuple[str, ...]:
        """Return messages about EP at the sites, and about the corrections."""
        fixed_point, said = self.found, []
        if fixed_point.aside:
            return (_ASIDE.format(self.evidence.value), *filter(None, [disagreement(self._spread)]))
        if self.response is None:
            said.append(_NO_RESPONSE)
        else:
            said.append(on_variances(self.response.variance, fixed_point.fixed.std**2))
        said.extend(self._on_means())
        said.append(disagreement(self._spread))
        said.append(
            on_evidence(self.evidence.value - fixed_point.log_evidence, self.evidence.spread)
        )
        return tuple(word for word in said if word)

    def _on_means(self) -> list[str]:
        """Compare means by the gradient, by FACT and, with several peaks, by short chains."""
        fixed_point, fact, ep = self.found, self._fact, self.found.fixed.mean
        if fixed_point.folded:
            shift = fixed_point.V @ self.response.push if self.response is not None else 0.0 * ep
            return [on_means(shift, shift, fixed_point.fixed.std)]
        moved, variance, smaller = fact.mean, fact.variance, fact.variance
        if self.response is not None:
            response_variance = self.response.variance
            moved, smaller = (
                ep + fixed_point.V @ self.response.push,
                np.minimum(variance, response_variance),
            )
            variance = variance ** (1.0 - _RESPONSE) * response_variance**_RESPONSE
        among, said = 0.0, ""
        if not fixed_point.likelihood.log_concave and ep.size <= _CHAINED:
            chains = self._chains
            among, said = chained_shift(ep, chains), on_chains(moved, variance, chains)
        return [on_means(moved - ep, fact.mean - ep, np.sqrt(smaller), among), said]

    @cached_property
    def _chains(self) -> Chains:
        """Short chains with a fixed seed, so that the messages of `words` are reproducible."""
        fixed_point = self.found
        K, likelihood = needed(fixed_point.observed)
        rng = np.random.default_rng(0)
        covariances, steps = (fixed_point.V, K), _SHORT
        prior = fixed_point.observed.prior
        chains = run_chains(
            fixed_point.rule, fixed_point.fixed, covariances, prior, rng, steps=steps, kept=steps
        )
        likelihood.raise_failure()
        return chains

    @property
    def _spread(self) -> Array:
        spread = self._fact.spread
        return spread[np.isfinite(spread)]

    @cached_property
    def _fact(self) -> CorrectedMarginals:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CorrectionWarning)
            return self.marginals(MarginalPoints(None, np.zeros(0), np.zeros(0)), "fact")

    def targets(self, points: MarginalPoints) -> Targets:
        """Return EP's normals of the points, and their covariances with the sites."""
        fixed_point, K_star = self.found, points.K_star
        V, fixed = fixed_point.V, fixed_point.fixed
        if K_star is None:
            return Targets(V, fixed.mean, fixed.std, np.arange(fixed.mean.size))
        rows = K_star - (K_star * fixed.tau) @ V
        mean = points.mean + K_star @ fixed_point.factor.weights
        variance = np.maximum(points.variance - fixed_point.factor.reduction(K_star), 0.0)
        std = np.sqrt(np.maximum(variance, _LEAST * points.variance))
        return Targets(np.ascontiguousarray(rows), mean, std, np.full(mean.size, -1))

    def marginals(self, points: MarginalPoints, correction: Correction) -> CorrectedMarginals:
        """Return marginals shaped by FACT; "blend" and "tilt" change means and variances."""
        fixed_point = self.found
        folded = _folds(fixed_point.folded, points)
        targets = self.targets(points)
        problem = fixed_point.rule, fixed_point.fixed, fixed_point.tilted
        densities = normalised(*log_densities(*problem, targets))
        fixed_point.likelihood.raise_failure()
        mean, variance, skewness = moments(densities)
        spread = np.full(mean.size, np.nan)
        notes = [] if fixed_point.is_own else [_BESIDE]
        response_variance = self._responses(points, targets)
        if response_variance is None:
            notes.append(_NO_RESPONSE)
        else:
            spread = np.abs(np.log(variance / response_variance))
            if correction != "fact" and self.response is not None:
                wanted = variance ** (1.0 - _RESPONSE) * response_variance**_RESPONSE
                if correction == "tilt":
                    wanted = self._tilted(points, targets)
                moved = targets.mean + targets.rows @ self.response.push
                densities = shifted(densities, mean, moved, np.sqrt(wanted / variance))
                mean, variance = moved, wanted
        if doubt := disagreement(spread):
            notes.append(doubt)
            warn(doubt, CorrectionWarning)
        if folded:
            notes.append(_FOLDED)
            densities = fold(densities)
            mean, variance, skewness = moments(densities)
        return CorrectedMarginals(
            mean,
            variance,
            skewness,
            spread,
            correction,
            tuple(notes),
            densities,
            fixed_point.likelihood,
            folded=folded,
        )

    def _responses(self, points: MarginalPoints, targets: Targets) -> Array | None:
        """Return variances by linear response, or None if they are not positive."""
        if self.response is None:
            return None
        if points.K_star is None:
            return self.response.variance
        variance = self.response.at(targets.rows, targets.std**2)
        return variance if (variance > 0.0).all() else None

    def _tilted(self, points: MarginalPoints, targets: Targets) -> Array:
        n = self.found.fixed.mean.size
        if n > _MOST:
            raise InputError(
                f'correction "tilt" runs EP twice for every point, N^4 operations, and is for '
                f'{_MOST} sites at most, got {n}; use "blend"'
            )
        K, _ = needed(self.found.observed)
        if points.K_star is None:
            return tilted_variances(self.found, K, K.diagonal(), targets.std)
        return tilted_variances(self.found, points.K_star, points.variance, targets.std)


def _folds(folded: bool, points: MarginalPoints) -> bool:
    """Return whether marginals are those of |f|; raise if new points have a known sign."""
    if folded and points.K_star is not None and np.any(points.mean != 0.0):
        raise InputError(
            "the prior mean is 0 at the sites, whose likelihood does not know the sign of f, and "
            f"reaches {np.abs(points.mean).max():.3g} at new points: marginals are those of |f| "
            "and need mean=0; or infer with a prior mean away from 0"
        )
    return folded


def shifted(densities: Densities, mean: Array, moved: Array, stretch: Array) -> Densities:
    """Move densities of mean `mean` to `moved` and stretch them about it."""
    points, logs, below, weights = densities
    points = moved[:, None] + stretch[:, None] * (points - mean[:, None])
    return Densities(points, logs - np.log(stretch)[:, None], below, weights)


def sampled(
    fixed_point: NormalApproximation,
    points: MarginalPoints,
    rng: np.random.Generator,
    steps: int,
    folded: bool = False,
) -> CorrectedMarginals:
    """Return marginals by elliptical slice sampling of the sites and draws of new points.

    Each of four chains takes `steps` steps, and draws are thinned to save memory. If `folded`, the
    marginals are those of |f|, for which chains in mirrored peaks are alike.
    """
    folded = _folds(folded, points)
    observed, fixed = fixed_point.observed, fixed_point.fixed
    K, likelihood = needed(observed)
    kept = max(250, _KEPT // (CHAINS * fixed.mean.size))
    chains = run_chains(
        fixed_point.rule, fixed, (fixed_point.V, K), observed.prior, rng, steps=steps, kept=kept
    )
    likelihood.raise_failure()
    draws = chains.draws
    rhat, effective = chains.rhat, chains.effective
    if points.K_star is not None:
        values, vectors = np.linalg.eigh(K)
        inside = values > 1e-13 * values[-1]
        gain = (points.K_star @ vectors[:, inside]) / values[inside] @ vectors[:, inside].T
        conditional_variance = points.variance - np.einsum("ij,ij->i", gain, points.K_star)
        draws = points.mean + (draws - observed.prior) @ gain.T
        draws += np.sqrt(np.maximum(conditional_variance, 0.0)) * rng.standard_normal(draws.shape)
    if folded:
        draws = np.abs(draws)
    if folded or points.K_star is not None:
        rhat, effective = mixing(draws)
    flat = draws.reshape(-1, draws.shape[-1])
    mean, variance = flat.mean(axis=0), flat.var(axis=0)
    gap = flat - mean
    square = gap * gap
    skewness = (square * gap).mean(axis=0) / variance**1.5
    kurtosis = (square * square).mean(axis=0) / variance**2
    notes = [
        f"{len(draws)} chains of {steps} steps: R-hat at most {rhat.max():.3f}, "
        f"effective draws at least {effective.min():.0f}"
    ]
    if rhat.max() > _RHAT_LIMIT:
        notes.append(
            f"the chains have not mixed (R-hat {rhat.max():.2f} > {_RHAT_LIMIT}): there may be "
            "several peaks; raise steps"
        )
        warn(notes[-1], SamplingWarning)
    densities = densities_of(flat, effective)
    if folded:
        notes.append(_FOLDED)
        densities = fold(densities)  # smoothing has left some mass below 0
    return CorrectedMarginals(
        mean,
        variance,
        skewness,
        np.sqrt(np.maximum(kurtosis - 1.0, 0.0) / effective),
        "sample",
        tuple(notes),
        densities,
        likelihood,
        rhat,
        effective,
        folded,
    )


# --- Messages about EP and its corrections
#
# Averaged over sites, the log ratio of linear response to EP's variance follows the error of EP's
# log variance. If FACT and linear response are far apart, the blend is wrong by about their
# distance: docs/bench-posterior.md compares both with long chains.

#: Log ratios of variances above which EP's are reported, and above which estimates are not trusted.
_NOTABLE, FAR_APART = 0.2, 0.25
#: Correction of the log evidence that is reported, and root mean square shift of means in standard
#: deviations that is reported.
_EVIDENCE, _MEANS = 0.1, 0.06
#: Number of sites up to which FACT's means are exact, and how far they may contradict the other
#: ones.
_EXACT, _CONTRARY = 2, 0.05
#: Number of standard errors that count as chance.
_ERRORS = 4.0


def on_variances(response: Array, variance: Array) -> str:
    """Return a message on the error of EP's variances, from those of linear response."""
    gap = float(np.mean(np.log(response / variance)))
    if gap > _NOTABLE:
        return (
            f"EP's variances are about {1.0 - np.exp(-gap):.0%} too small here, and those of QP "
            "and VB smaller still; marginals() corrects them"
        )
    if gap < -_NOTABLE:
        return (
            f"EP's variances are about {np.exp(-gap) - 1.0:.0%} too large here; marginals() "
            "corrects them"
        )
    return ""


def _size(values: Array) -> float:
    return float(np.sqrt(np.mean(values**2)))


def on_means(moved: Array, fact: Array, std: Array, among: float = 0.0) -> str:
    """Return a message on the error of EP's means, from corrected means and FACT's.

    FACT finds a part of the shift if many sites act together, and the whole shift for two sites. If
    its shift has another direction, or is larger, the expansion behind `moved` does not hold.
    `among` is the shift that chains have found.
    """
    moved, fact = moved / std, fact / std
    size = max(_size(np.maximum(np.abs(moved), np.abs(fact))), among)
    along = np.where(moved < 0.0, -fact, fact)
    astray = np.maximum(np.maximum(along - np.abs(moved), -along), 0.0)
    contrary = moved.size <= _EXACT or _size(astray) > _CONTRARY
    remainder = max(_size(fact - moved), 0.3 * size) if contrary else 0.3 * size
    if not max(size, remainder) > _MEANS:
        return ""
    said = f"EP's means are off by about {size:.2g} standard deviations"
    if contrary and remainder > max(_CONTRARY, 0.5 * size):
        return (
            f"{said}, and two estimates of the corrected ones differ by {remainder:.2g}: "
            'corrections do not hold; sample it, correction="sample"'
        )
    return f"{said}; marginals() corrects them, but for up to {remainder:.1g}"


def on_chains(moved: Array, variance: Array, chains: Chains) -> str:
    """Return a message on corrected means and variances, from short exact chains."""
    rhat = float(chains.rhat.max())
    if rhat > _RHAT_LIMIT:
        return (
            f"short chains have not mixed (R-hat {rhat:.2f}): the posterior may have several "
            'peaks, and corrections may not hold; sample it, correction="sample"'
        )
    draws = chains.draws.reshape(-1, moved.size)
    std, error = draws.std(axis=0), 1.0 / np.sqrt(chains.effective)
    gap = np.abs(moved - draws.mean(axis=0)) / std
    ratio = np.abs(np.log(variance / std**2))
    if _size(np.maximum(gap - _ERRORS * error, 0.0)) > 2.0 * _CONTRARY:
        return (
            f"corrected means are {_size(gap):.2g} standard deviations from those of short chains: "
            'corrections do not hold; sample it, correction="sample"'
        )
    # The log variance of a normal has 1.4 times the error of the mean; with heavy tails it has
    # more.
    if float(np.mean(np.maximum(ratio - 2.0 * _ERRORS * error, 0.0))) > FAR_APART:
        return (
            f"corrected variances differ from those of short chains by "
            f"{np.expm1(np.mean(ratio)):.0%}: corrections do not hold; sample it, "
            'correction="sample"'
        )
    return ""


def chained_shift(mean: Array, chains: Chains) -> float:
    """Return the distance of means from those of chains, less sampling error."""
    draws = chains.draws.reshape(-1, mean.size)
    gap = np.abs(mean - draws.mean(axis=0)) / draws.std(axis=0)
    chance = _ERRORS / np.sqrt(chains.effective)
    return _size(gap) if _size(np.maximum(gap - chance, 0.0)) > 0.5 * _MEANS else 0.0


def disagreement(spread: Array) -> str:
    """Return a message if two estimates of the variances are too far apart."""
    far = float(np.mean(spread)) if spread.size else 0.0
    if not far > FAR_APART:
        return ""
    return (
        f"two estimates of the variances differ by {np.expm1(far):.0%}: the posterior may have "
        'several peaks, and corrections do not hold; sample it, correction="sample"'
    )


def on_evidence(shift: float, spread: float) -> str:
    """Return a message on the error of EP's log evidence."""
    if abs(shift) < _EVIDENCE:
        return ""
    way = "low" if shift > 0.0 else "high"
    return (
        f"EP's log evidence is about {abs(shift):.2g} too {way} (give or take "
        f"{max(spread, 0.01):.1g}); corrected_evidence() has the better value"
    )
