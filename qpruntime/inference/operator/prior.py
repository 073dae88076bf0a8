"""Which side the algebra is on, and the posterior of either."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.operator.functionals import Functionals
from qpruntime.inference.operator.latent import LatentPrior
from qpruntime.inference.operator.solution import OperatorSolution
from qpruntime.inference.operator.stored import LatentKept, RowsKept
from qpruntime.inference.posterior import Posterior, solution_of

__all__ = ["along", "functionals_prior", "takes_latent_side"]

#: Observations for each latent value from which on the latent side costs less.
_MANY = 2


def takes_latent_side(functionals: Functionals, method: str) -> bool:
    """Whether n^3 + N n^2 operations are fewer than N^3, for n latent values and N rows."""
    # The bound of "vb" takes the covariance of what is observed.
    return method != "vb" and functionals.n >= _MANY * functionals.latent


def functionals_prior(
    functionals: Functionals, K: Array, mean: Array, latent: bool
) -> DensePrior | LatentPrior:
    """Return the prior of A f for f of covariance K (n, n) and mean (n,).

    Raises
    ------
    InputError
        If a row of A has no prior variance, or something cannot fit into memory.
    """
    prior: DensePrior | LatentPrior
    if latent:
        prior = LatentPrior(functionals, K, mean)
    else:
        prior = DensePrior(functionals.covariance(K), functionals.times(mean))
    functionals.require_variances(prior.variance, K)
    return prior


def along(post: Posterior, functionals: Functionals, K: Array, mean: Array) -> Posterior:
    """Return the posterior of the functionals as one that also knows f."""
    found = solution_of(post)
    kept = found.kept if isinstance(found.kept, LatentKept) else RowsKept(found.kept, functionals)
    rows = found.own, found.mean, found.variance, found.log_z
    data = replace(found.data, K=None)
    prior = np.broadcast_to(mean, (functionals.latent,)).copy()
    return replace(post, _solution=OperatorSolution(*rows, kept, functionals, prior, data, K))
