"""The prior mean of a rate's latent function: given, or that of the mean rate."""

from __future__ import annotations

from typing import Any

from qpruntime.arrays import Array
from qpruntime.errors import InputError, warn
from qpruntime.likelihoods.rates import RateLink
from qpruntime.validation import number, shown

__all__ = ["prior_mean"]


def prior_mean(
    value: Any, link: RateLink, events: Array, exposure: Array, weights: Array | None
) -> float:
    """Return `value` if it is a number, for None the f of the mean rate of the events.

    Raises
    ------
    InputError
        If it is neither.

    Warns
    -----
    UserWarning
        If it leaves the sign of f open.
    """
    return _of_rate(link, events, exposure, weights) if value is None else _given(value, link)


def _of_rate(link: RateLink, events: Array, exposure: Array, weights: Array | None) -> float:
    """The f of the mean rate, with half an event added if there is none."""
    seen, looked = events, exposure
    if weights is not None:
        # Weights of mean 1: their sums do not overflow, and half an event is one of as many as
        # there are.
        share = weights / weights.max()
        share /= share.mean()
        seen, looked = share * seen, share * looked
    rate = max(float(seen.sum()), 0.5) / float(looked.sum())
    return link.latent(rate)


def _given(value: Any, link: RateLink) -> float:
    try:
        mean = number(value, "mean", above=-1e100, most=1e100)
    except InputError as error:
        raise InputError(f"mean must be a finite number or None, got {shown(value)}") from error
    if mean == 0.0 and link.two_signs:
        warn(
            "mean=0 leaves the sign of the latent function open: the posterior is symmetric "
            "under f <-> -f and has two peaks, which one normal covers badly; leave mean=None "
            "or give about the f of the expected rate, for the square link its square root",
            UserWarning,
        )
    return mean
