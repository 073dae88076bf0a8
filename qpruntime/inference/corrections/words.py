"""What corrections say of EP and of themselves, in plain words.

Over sites the log ratio of linear response to EP's variance follows the error of EP's log variance,
and where FACT and linear response are far apart the blend is wrong by about as much:
docs/which-posterior.md has both beside long chains.
"""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.corrections.slice_sampler import Chains

__all__ = [
    "FAR_APART",
    "chained_shift",
    "disagreement",
    "on_chains",
    "on_evidence",
    "on_means",
    "on_variances",
]

#: Log ratios of variances: EP's are worth a word, and estimates too far apart to be trusted.
_NOTABLE, FAR_APART = 0.2, 0.25
#: Log evidence that is worth a word, and root mean square shifts of means in standard deviations.
_EVIDENCE, _MEANS = 0.1, 0.06
#: Sites up to which FACT's means are exact, and how far they may contradict the others'.
_EXACT, _CONTRARY = 2, 0.05
#: R-hat up to which chains have mixed, and standard errors that are chance.
_MIXED, _ERRORS = 1.05, 4.0


def on_variances(response: Array, variance: Array) -> str:
    """How far EP's variances are off, from those of linear response."""
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
    """How far EP's means are off, by shifts to the corrected means and to those of FACT.

    FACT finds a part of the shift where many sites act together, and of two sites all of it. Where
    it goes another way, or further, the expansion that `moved` comes from does not hold. `among`
    is what chains have found.
    """
    moved, fact = moved / std, fact / std
    size = max(_size(np.maximum(np.abs(moved), np.abs(fact))), among)
    along = np.where(moved < 0.0, -fact, fact)
    astray = np.maximum(np.maximum(along - np.abs(moved), -along), 0.0)
    contrary = moved.size <= _EXACT or _size(astray) > _CONTRARY
    left = max(_size(fact - moved), 0.3 * size) if contrary else 0.3 * size
    if not max(size, left) > _MEANS:
        return ""
    said = f"EP's means are off by about {size:.2g} standard deviations"
    if contrary and left > max(_CONTRARY, 0.5 * size):
        return (
            f"{said}, and two estimates of the corrected ones differ by {left:.2g}: corrections do "
            'not hold; sample it, correction="sample"'
        )
    return f"{said}; marginals() corrects them, but for up to {left:.1g}"


def on_chains(moved: Array, variance: Array, chains: Chains) -> str:
    """What short chains of the exact posterior say of corrected means and variances."""
    rhat = float(chains.rhat.max())
    if rhat > _MIXED:
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
    # The log variance of a normal has 1.4 times the error of the mean, that of heavy tails more.
    if float(np.mean(np.maximum(ratio - 2.0 * _ERRORS * error, 0.0))) > FAR_APART:
        return (
            f"corrected variances differ from those of short chains by "
            f"{np.expm1(np.mean(ratio)):.0%}: corrections do not hold; sample it, "
            'correction="sample"'
        )
    return ""


def chained_shift(mean: Array, chains: Chains) -> float:
    """How far means are from those of chains, in standard deviations, less what chances make."""
    draws = chains.draws.reshape(-1, mean.size)
    gap = np.abs(mean - draws.mean(axis=0)) / draws.std(axis=0)
    chance = _ERRORS / np.sqrt(chains.effective)
    return _size(gap) if _size(np.maximum(gap - chance, 0.0)) > 0.5 * _MEANS else 0.0


def disagreement(spread: Array) -> str:
    """Where two estimates of the variances are too far apart."""
    far = float(np.mean(spread)) if spread.size else 0.0
    if not far > FAR_APART:
        return ""
    return (
        f"two estimates of the variances differ by {np.expm1(far):.0%}: the posterior may have "
        'several peaks, and corrections do not hold; sample it, correction="sample"'
    )


def on_evidence(shift: float, spread: float) -> str:
    """How far EP's log evidence is off."""
    if abs(shift) < _EVIDENCE:
        return ""
    way = "low" if shift > 0.0 else "high"
    return (
        f"EP's log evidence is about {abs(shift):.2g} too {way} (give or take "
        f"{max(spread, 0.01):.1g}); corrected_evidence() has the better value"
    )
