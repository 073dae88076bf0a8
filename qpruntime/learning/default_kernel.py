"""The kernel of ``kernel=None``: distances in units of each feature's spread.

Features are centred and divided by their spread, so that the optimiser sees numbers without units
and one length-scale; the fitted kernel is returned in units of the features, as scikit-learn
writes it. `docs/defaults.md` says why it is this one. Nothing here knows likelihoods.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array
from qpruntime.kernels.default import (
    Belief,
    LogNormal,
    default_kernel,
    each_column,
    table_kernel,
)
from qpruntime.kernels.units import Units
from qpruntime.learning.priors import priors_of
from qpruntime.learning.starts import degenerate

__all__ = ["Start", "automatic_start", "default_start", "given_start", "learns_nothing"]

# The length-scale begins where the evidence is highest among these, in units of the square root of
# the number of features, which is about the distance of two rows over sqrt(2).
_LENGTHS = (1.0, 1.0 / 4.0, 1.0 / 16.0, 1.0 / 64.0)
_LENGTH_BOUNDS = (1e-3, 1e3)
_VARIANCE_BOUNDS = (1e-6, 1e8)
# A level that differs from the others hardly, and one that knows nothing of them.
_DISSIMILARITY_BOUNDS = (1e-6, 1e2)
# Length-scales of single features may be so much longer.
_IRRELEVANT = 1e3


@dataclass(frozen=True)
class Start:
    """Where an optimiser begins.

    Attributes
    ----------
    kernel : scikit-learn kernel
    log_prior : callable or None
        Of the kernel's log parameters, or of theirs and then those of the likelihood, and its
        gradient; it is added to the objective.
    thetas : tuple of ndarray
        Log parameters, of which the best is the start; those of the kernel if there are none.
        Those of the likelihood may follow.
    by_feature : int
        Of how many features each may get a length-scale of its own; 0 if none may.
    others : tuple of Start
        Further kernels, of which the one with the best optimum is taken.
    """

    kernel: Kernel
    log_prior: Any = None
    thetas: tuple[Array, ...] = ()
    by_feature: int = 0
    others: tuple[Start, ...] = ()

    def refined(self, optimum: Array) -> Start:
        """Where to begin with a length-scale for each feature: at the optimum of a common one."""
        theta = optimum[: self.kernel.n_dims]
        (low, high), count = self.kernel.bounds[-1], self.by_feature
        lengths = np.full(count, math.exp(theta[-1]))
        kernel = self.kernel.clone_with_theta(theta)
        prior = self.log_prior
        own = each_column(kernel.k2.k2, _IRRELEVANT)
        if own is not None:
            start = np.concatenate([theta[:2], own.theta, optimum[theta.size :]])
            prior = LogNormal(prior.mean[:2], prior.deviation[:2])
            return Start(kernel.k1 + kernel.k2.k1 * own, prior, (start,))
        bounds = math.exp(low), _IRRELEVANT * math.exp(high)
        shape = clone(kernel.k2.k2).set_params(length_scale=lengths, length_scale_bounds=bounds)
        start = np.concatenate([theta[:-1], np.repeat(theta[-1], count), optimum[theta.size :]])
        if prior is not None:
            prior = LogNormal(prior.mean[:-1], prior.deviation[:-1])
        return Start(kernel.k1 + kernel.k2.k1 * shape, prior, (start,))


def given_start(kernel: Kernel, priors: Any, learnt: Mapping[str, Any]) -> Start:
    """Return where a fit of a kernel that is given begins, with the priors that are."""
    return Start(kernel, priors_of(priors, kernel, learnt))


def default_start(units: Units, scale: float = 1.0, smooth: bool = False, nu: float = 2.5) -> Start:
    """Return the kernel of ``kernel=None`` for scaled features.

    Parameters
    ----------
    units : Units
        With columns of levels the kernel is the product of one of these and one of numbers.
    scale : float
        Standard deviation that the latent function can be expected to have, about.
    smooth : bool
        A squared exponential in place of Matérn 5/2.
    nu : float
        Of another Matérn kernel.
    """
    numbers, levels = units.numbers_and_levels
    length, variance = math.sqrt(max(len(numbers), 1)), scale**2
    low, high = (bound * variance for bound in _VARIANCE_BOUNDS)
    beliefs = (
        Belief(variance, low, high, 4.0 * variance, 10.0),
        Belief(length, _LENGTH_BOUNDS[0] * length, _LENGTH_BOUNDS[1] * length, 1.0),
    )
    offset = Belief(variance, low, high, variance, 4.0)
    if levels:
        unlike = Belief(1.0 / len(levels), *_DISSIMILARITY_BOUNDS, 1.0)
        kernel, prior = table_kernel(
            *beliefs, unlike, offset, numbers, levels, smooth=smooth, nu=nu
        )
    else:
        kernel, prior = default_kernel(*beliefs, offset, smooth=smooth, nu=nu)
    shifts = [np.eye(kernel.n_dims)[-1] * math.log(share) for share in _LENGTHS]
    thetas = tuple(kernel.theta + shift for shift in shifts)
    return Start(kernel, prior, thetas, by_feature=units.count if units.count > 1 else 0)


def automatic_start(units: Units, scale: float = 1.0) -> Start:
    """Return the kernels of ``kernel="auto"``: that of None, and a squared exponential.

    Neither has a linear part: the evidence nearly always takes one, and predictions are as often
    worse as better.
    """
    return replace(default_start(units, scale), others=(default_start(units, scale, smooth=True),))


def learns_nothing(kernel: Kernel, Z: Array) -> str:
    """Say so if the fitted default kernel tells no rows apart, or relates none; "" if it does."""
    shape = degenerate(kernel.k2, Z)
    if shape is None:
        return ""
    how = "relates no rows to each other" if shape == "diagonal" else "tells no rows apart"
    return (
        f"nothing was found in the features: the fitted kernel {how}, and predictions are about "
        "the same everywhere else; check that features vary and belong to their targets"
    )
