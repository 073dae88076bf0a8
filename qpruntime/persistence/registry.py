"""What a saved model is made of: classes whose state is read back, and nothing else.

Making one of these from a stranger's values runs none of the stranger's code, opens no file and
removes none. What estimators are given from elsewhere, such as a prior mean of trees, is not here.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

__all__ = ["ROOTS", "callable_of", "class_of", "name_of"]

_BY_MODULE = {
    "qpruntime.dataframes.encoding": ("Table", "Coding"),
    "qpruntime.effects.areal": ("Areas", "AreasBlock", "Graph"),
    "qpruntime.effects.objective": ("Assembly",),
    "qpruntime.effects.families": ("Family",),
    "qpruntime.effects.fixed": ("Fixed", "FixedBlock"),
    "qpruntime.effects.groups": ("Groups", "GroupsBlock"),
    "qpruntime.effects.integration": ("Nodes",),
    "qpruntime.effects.intrinsic": ("Structure", "ShiftedDeterminant"),
    "qpruntime.effects.mesh": ("Mesh",),
    "qpruntime.effects.model": ("EffectsModel",),
    "qpruntime.effects.term": ("Pattern", "NormalPrior", "Tail"),
    "qpruntime.effects.spde": ("Plane", "PlaneBlock"),
    "qpruntime.effects.interaction": ("Product", "ProductBlock"),
    "qpruntime.effects.autoregressive": ("Series", "SeriesBlock"),
    "qpruntime.effects.state": ("State",),
    "qpruntime.effects.random_walk": ("Walk", "WalkBlock"),
    "qpruntime.forecasting.forecaster": ("GPForecaster",),
    "qpruntime.forecasting.calendar": ("Clock",),
    "qpruntime.forecasting.cycle": ("Cycle", "CycleBlock"),
    "qpruntime.forecasting.structure": ("Around", "Held", "Learnt", "Structure"),
    "qpruntime.forecasting.panel": ("GPPanelForecaster",),
    "qpruntime.forecasting.families": ("Scale",),
    "qpruntime.estimators.classifier": ("GPClassifier",),
    "qpruntime.estimators.poisson": ("GPPoissonRegressor",),
    "qpruntime.estimators.preference": ("GPPreference",),
    "qpruntime.estimators.ordinal": ("GPOrdinal",),
    "qpruntime.estimators.survival": ("GPSurvival",),
    "qpruntime.predictive.density": ("Places",),
    "qpruntime.predictive.distribution": ("Predicted",),
    "qpruntime.estimators.regressor": ("GPRegressor",),
    "qpruntime.estimators.robust": ("GPRobustRegressor",),
    "qpruntime.inference.posterior": ("Posterior", "Lookups"),
    "qpruntime.inference.multiclass.linalg": ("Layout",),
    "qpruntime.inference.multiclass.posterior": ("ClassPosterior", "ClassSolution"),
    "qpruntime.inference.multiclass.solver": ("ClassKept",),
    "qpruntime.inference.multiclass.sparse": ("SparseClassPosterior", "PointKept", "PointSolution"),
    "qpruntime.inference.markov.posterior": ("SeriesPosterior",),
    "qpruntime.inference.sparse.posterior": ("SparsePosterior", "SparseSolution"),
    "qpruntime.inference.local.posterior": ("LocalPosterior", "LocalSolution"),
    "qpruntime.inference.dense.solution": ("DenseSolution",),
    "qpruntime.inference.dense.solver": ("Kept",),
    "qpruntime.inference.fixed_point.convergence": ("Limits",),
    "qpruntime.inference.sparse.data": ("Held",),
    "qpruntime.inference.markov.data": ("Series", "Clock"),
    "qpruntime.inference.markov.solution": ("SeriesSolution",),
    "qpruntime.inference.markov.streaming": ("Piece",),
    "qpruntime.inference.problem": ("Observed", "Problem"),
    "qpruntime.inference.operator.functionals": ("Functionals",),
    "qpruntime.inference.operator.solution": ("OperatorSolution",),
    "qpruntime.inference.operator.solver": ("LatentKept", "RowsKept"),
    "qpruntime.inference.precision.aggregation": ("Collapsed", "Merged", "SeenRows"),
    "qpruntime.inference.precision.prior": ("Conditioned",),
    "qpruntime.inference.precision.pattern_kernels": ("Equal",),
    "qpruntime.inference.precision.cholesky": ("Factorised",),
    "qpruntime.inference.precision.corrections": ("PairSums",),
    "qpruntime.inference.precision.pattern": ("Pattern", "SparseRows"),
    "qpruntime.inference.precision.posterior": ("PrecisionPosterior",),
    "qpruntime.inference.precision.solution": ("PrecisionSolution",),
    "qpruntime.inference.precision.solver": ("PrecisionSolved", "PrecisionPrior"),
    "qpruntime.inference.precision.symbolic": ("Shape", "Symbolic"),
    "qpruntime.inference.site_kernels": ("Marginals",),
    "qpruntime.inference.sites": ("Sites",),
    "qpruntime.inference.sparse.features": ("Inducing",),
    "qpruntime.kernels.mixed_inputs": ("Categories", "On", "Same"),
    "qpruntime.kernels.base": ("Factor", "States", "Term"),
    "qpruntime.kernels.state_space": ("StateSpace",),
    "qpruntime.learning.optimise": ("Optimum",),
    "qpruntime.learning.settings": ("Slopes",),
    "qpruntime.learning.hyper_integration.density": ("Integrated",),
    "qpruntime.learning.options": ("Search", "Series", "Inducing", "Integrate", "Joint"),
    "qpruntime.learning.model_selection.budget": ("Stage",),
    "qpruntime.learning.rank_transform": ("Warp",),
    "sklearn.gaussian_process.kernels": (
        *("CompoundKernel", "ConstantKernel", "DotProduct", "ExpSineSquared", "Exponentiation"),
        *("Matern", "PairwiseKernel", "Product", "RBF", "RationalQuadratic", "Sum"),
        *("WhiteKernel", "Hyperparameter"),
    ),
}
_CLASSES = {f"{module}:{name}" for module, names in _BY_MODULE.items() for name in names}
#: Called with values: a registered likelihood, one beside signs, a table found by its hash, what
#: looks up in it.
_CALLABLES = {
    "qpruntime.inference.precision.aggregation:held_trials",
    "qpruntime.likelihoods.registry:_holding",
    "qpruntime.likelihoods.registry:get",
    "qpruntime.likelihoods.registry:holding",
    "qpruntime.projection.open:reopen",
    "qpruntime.projection.projector:Projector",
    "qpruntime.projection.sign_observations:signed",
    "qpruntime.inference.sparse.state:Rule",
}
#: What a file may hold as a whole.
ROOTS = {name for name in _CLASSES if name.startswith("qpruntime.estimators") and ":GP" in name} | {
    name for name in _CLASSES if name.endswith(("Posterior", ":EffectsModel", "Forecaster"))
}


def name_of(thing: Any) -> str:
    """Return the name of a class or function."""
    return f"{thing.__module__}:{thing.__qualname__}"


def class_of(name: str) -> type | None:
    """Return the class of this name, None if it is none of those that are read."""
    return _resolved(name) if name in _CLASSES else None


def callable_of(name: str) -> Any:
    """Return the function of this name, None if it is none of those that are called."""
    return _resolved(name) if name in _CALLABLES else None


@cache
def _resolved(name: str) -> Any:
    module, _, qualified = name.partition(":")
    return getattr(importlib.import_module(module), qualified)
