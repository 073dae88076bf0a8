"""What evaluating each function anywhere would tell about the minimiser, in nats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.bayesopt.conditioning import Conditioned
from qpruntime.bayesopt.frame import Base, Frame, checked
from qpruntime.bayesopt.surrogate import Surrogate, points
from qpruntime.errors import InputError

__all__ = ["gains", "gains_of"]


def gains(surrogates: Sequence[Surrogate], posts: Sequence[Conditioned], X: ArrayLike) -> Array:
    """Mutual information between each function's next observation and the minimiser.

    Parameters
    ----------
    surrogates : list of Surrogate
        What is known now, the objective first.
    posts : list of Conditioned
        The same functions conditioned on samples of the minimiser.
    X : array-like, shape (T, d)

    Returns
    -------
    ndarray, shape (K + 1, T)
        In nats; the sum is the gain of evaluating all functions. It may be slightly negative.

    Raises
    ------
    InputError
        If shapes do not fit or there is nothing to average.
    """
    known = checked(surrogates)
    if not posts or not all(isinstance(post, Conditioned) for post in posts):
        raise InputError("posts must be a list of what condition() returns, at least one")
    wrong = {len(post.tau) for post in posts} - {len(known)}
    if wrong:
        raise InputError(f"posts are of {wrong.pop()} functions, surrogates of {len(known)}")
    found = points(X, "X", known[0].X.shape[1])
    _, variance = zip(*(s.predict(found) for s in known), strict=True)
    noise = _noise(known)
    before = 0.5 * np.log(np.array(variance) + noise)
    bases = {id(post.frame): post.frame.base(found) for post in posts}
    after = [np.log(post.at(bases[id(post.frame)])[1] + noise) for post in posts]
    return before - 0.5 * np.mean(after, axis=0)


def gains_of(posts: Sequence[Conditioned], X: Array) -> Array:
    """`gains` where each x* has surrogates of its own: hyper-parameters, or pending outcomes."""
    total: Array | float = 0.0
    bases: dict[int, Base] = {}
    for post in posts:
        frame: Frame = post.frame
        if id(frame) not in bases:
            bases[id(frame)] = frame.base(X)
        base = bases[id(frame)]
        noise = _noise(frame.surrogates)
        total = total + np.log((base.variance + noise) / (post.at(base)[1] + noise))
    return 0.5 * np.asarray(total) / len(posts)


def _noise(surrogates: Sequence[Surrogate]) -> Array:
    """Variance of the noise of each function, (K + 1, 1), with what stands in for none."""
    return np.array([[s.lift] for s in surrogates])
