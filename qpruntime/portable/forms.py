"""All likelihoods of the package in plain operations, by name."""

from __future__ import annotations

from collections.abc import Callable

from qpruntime.likelihoods import Likelihood
from qpruntime.portable.bent import Binomial, Logistic, NegativeBinomial, PoissonExp
from qpruntime.portable.closed import Heaviside, Laplace, Probit, Step, StudentT
from qpruntime.portable.form import Form
from qpruntime.portable.operations import Operations
from qpruntime.portable.square import Poisson

__all__ = ["FORMS"]

FORMS: dict[str, Callable[[Operations, Likelihood], Form]] = {
    "binomial": Binomial,
    "heaviside": Heaviside,
    "laplace": Laplace,
    "logistic": Logistic,
    "negative-binomial": NegativeBinomial,
    "poisson": Poisson,
    "poisson-exp": PoissonExp,
    "probit": Probit,
    "step": Step,
    "student-t": StudentT,
}
