"""Constrained Bayesian optimisation by predictive entropy search (PESC).

Minimise f in a box subject to c_k >= 0, all of them unknown and expensive, by evaluating where it
tells most about the constrained minimiser (Hernandez-Lobato et al., ICML 2015). Variables are
reals, integers and categories.
"""

from __future__ import annotations

from qpruntime.bayesopt.acquisition import Aim, Knowledge, gains
from qpruntime.bayesopt.minimisers import sample_minimisers
from qpruntime.bayesopt.optimizer import Optimizer
from qpruntime.bayesopt.pesc import Conditioned, condition
from qpruntime.bayesopt.space import Category, Integer, Real
from qpruntime.bayesopt.surrogate import Surrogate

__all__ = [
    "Aim",
    "Category",
    "Conditioned",
    "Integer",
    "Knowledge",
    "Optimizer",
    "Real",
    "Surrogate",
    "condition",
    "gains",
    "sample_minimisers",
]
