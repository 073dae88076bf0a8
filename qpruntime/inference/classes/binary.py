"""Two classes: one binary problem on the difference of the latent functions.

p(y = 1) = Phi(h) for h = (f_1 - f_0)/sqrt(2), whose covariance is (K_0 + K_1)/2. EP is the
same along h and along g = u +- sqrt(2) h, QP is not, and is the truer along h. A site of h becomes
that of g which says the same of h once u is integrated out.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.classes.conclude import solution_of
from qpruntime.inference.classes.layout import Layout
from qpruntime.inference.classes.posterior import ClassPosterior
from qpruntime.inference.classes.solved import ClassPrior
from qpruntime.inference.posterior import Posterior
from qpruntime.inference.sites import Sites

__all__ = ["halved", "joined", "signs", "single"]


def halved(K: Array) -> Array:
    """Covariance of h, of those of both classes, (2, N, N) or (1, N, N)."""
    found: Array = K.mean(axis=0)
    return found


def signs(layout: Layout) -> Array:
    """Labels of the binary problem: +1 for the second class."""
    return np.where(layout.own == 1, 1.0, -1.0)


def single(sites: Sites | None, layout: Layout) -> Sites | None:
    """Sites of h, of those of g."""
    if sites is None:
        return None
    tau, nu = sites
    share = 1.0 / (1.0 + tau)
    return Sites(2.0 * tau * share, math.sqrt(2.0) * nu * share * signs(layout))


def joined(post: Posterior, K: Array, layout: Layout) -> ClassPosterior:
    """Return the joint posterior of both classes, of that of h.

    Raises
    ------
    NumericalError
        If a site of h is narrower than the noise allows.
    """
    tau, nu = post.sites
    if not (tau < 2.0).all():
        row = int(np.argmax(tau))
        raise NumericalError(
            f"the site of row {row} has precision {tau[row]:.3g}, and the noise of two classes "
            "leaves less than 2: the sites have not settled; raise max_sweeps"
        )
    own = tau / (2.0 - tau)
    sites = Sites(own, nu * signs(layout) * (1.0 + own) / math.sqrt(2.0))
    solved = ClassPrior(K, layout).factor(sites)
    return ClassPosterior._of(post, solution_of(solved, layout, K, sites, post.loo))
