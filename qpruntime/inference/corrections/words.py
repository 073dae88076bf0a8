"""What corrections say of EP and of themselves, in plain words.

Over sites the log ratio of linear response to EP's variance follows the error of EP's log variance,
and where FACT and linear response are far apart the blend is wrong by about as much:
docs/which-posterior.md has both beside long chains.
"""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array

__all__ = ["FAR_APART", "disagreement", "on_evidence", "on_means", "on_variances"]

#: Log ratios of variances: EP's are worth a word, and estimates too far apart to be trusted.
_NOTABLE, FAR_APART = 0.2, 0.25
#: Log evidence that is worth a word, and root mean square shifts of means in standard deviations.
_EVIDENCE, _MEANS = 0.1, 0.06


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


def on_means(shift: Array, std: Array) -> str:
    """How far EP's means are off."""
    size = float(np.sqrt(np.mean((shift / std) ** 2)))
    if not size > _MEANS:
        return ""
    return (
        f"EP's means are off by about {size:.2g} standard deviations; marginals() corrects them, "
        f"but for up to {0.3 * size:.1g}"
    )


def disagreement(spread: Array) -> str:
    """Where two estimates of the variances are too far apart."""
    far = float(np.mean(spread))
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
