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
    "qpruntime.columns.table": ("Table",),
    "qpruntime.effects.areas": ("Areas", "AreasBlock"),
    "qpruntime.effects.assembly": ("Assembly",),
    "qpruntime.effects.families": ("Family",),
    "qpruntime.effects.fixed": ("Fixed", "FixedBlock"),
    "qpruntime.effects.graph": ("Graph",),
    "qpruntime.effects.groups": ("Groups", "GroupsBlock"),
    "qpruntime.effects.integration": ("Nodes",),
    "qpruntime.effects.intrinsic": ("Structure",),
    "qpruntime.effects.levels": ("Coding",),
    "qpruntime.effects.mesh": ("Mesh",),
    "qpruntime.effects.model": ("EffectsModel",),
    "qpruntime.effects.pattern": ("Pattern",),
    "qpruntime.effects.plane": ("Plane", "PlaneBlock"),
    "qpruntime.effects.priors": ("NormalPrior", "Tail"),
    "qpruntime.effects.product": ("Product", "ProductBlock"),
    "qpruntime.effects.series": ("Series", "SeriesBlock"),
    "qpruntime.effects.shifted": ("ShiftedDeterminant",),
    "qpruntime.effects.state": ("State",),
    "qpruntime.effects.walk": ("Walk", "WalkBlock"),
    "qpruntime.forecasting.forecaster": ("GPForecaster",),
    "qpruntime.forecasting.clock": ("Clock",),
    "qpruntime.forecasting.cycle": ("Cycle", "CycleBlock"),
    "qpruntime.forecasting.held": ("Around", "Held", "Learnt"),
    "qpruntime.forecasting.panel": ("GPPanelForecaster",),
    "qpruntime.forecasting.scale": ("Scale",),
    "qpruntime.forecasting.structure": ("Structure",),
    "qpruntime.estimators.classifier": ("GPClassifier",),
    "qpruntime.estimators.poisson": ("GPPoissonRegressor",),
    "qpruntime.estimators.preference": ("GPPreference",),
    "qpruntime.estimators.ordinal": ("GPOrdinal",),
    "qpruntime.estimators.survival": ("GPSurvival",),
    "qpruntime.estimators.predictive.by_density": ("Places",),
    "qpruntime.estimators.predictive.by_likelihood": ("Predicted",),
    "qpruntime.estimators.regressor": ("GPRegressor",),
    "qpruntime.estimators.robust": ("GPRobustRegressor",),
    "qpruntime.inference.posterior": ("Posterior",),
    "qpruntime.inference.classes.layout": ("Layout",),
    "qpruntime.inference.classes.posterior": ("ClassPosterior",),
    "qpruntime.inference.classes.solution": ("ClassSolution",),
    "qpruntime.inference.classes.stored": ("ClassKept",),
    "qpruntime.inference.classes.sparse.posterior": ("SparseClassPosterior",),
    "qpruntime.inference.classes.sparse.stored": ("PointKept", "PointSolution"),
    "qpruntime.inference.markov.posterior": ("SeriesPosterior",),
    "qpruntime.inference.sparse.posterior": ("SparsePosterior",),
    "qpruntime.inference.nearest.posterior": ("LocalPosterior",),
    "qpruntime.inference.dense.solution": ("DenseSolution",),
    "qpruntime.inference.dense.stored": ("Kept",),
    "qpruntime.inference.fixed_point.ended": ("Limits",),
    "qpruntime.inference.nearest.solution": ("LocalSolution",),
    "qpruntime.inference.sparse.rows": ("Held",),
    "qpruntime.inference.markov.observations": ("Series",),
    "qpruntime.inference.markov.solution": ("SeriesSolution",),
    "qpruntime.inference.markov.stream": ("Piece",),
    "qpruntime.inference.markov.times": ("Clock",),
    "qpruntime.inference.observed": ("Observed",),
    "qpruntime.inference.operator.functionals": ("Functionals",),
    "qpruntime.inference.operator.solution": ("OperatorSolution",),
    "qpruntime.inference.operator.stored": ("LatentKept", "RowsKept"),
    "qpruntime.inference.outcome": ("Lookups",),
    "qpruntime.inference.precision.collapse": ("Collapsed", "Merged"),
    "qpruntime.inference.precision.conditioned": ("Conditioned",),
    "qpruntime.inference.precision.equal_rows": ("Equal",),
    "qpruntime.inference.precision.factorised": ("Factorised",),
    "qpruntime.inference.precision.observed_rows": ("SeenRows",),
    "qpruntime.inference.precision.pairs": ("PairSums",),
    "qpruntime.inference.precision.pattern": ("Pattern", "SparseRows"),
    "qpruntime.inference.precision.posterior": ("PrecisionPosterior",),
    "qpruntime.inference.precision.solution": ("PrecisionSolution",),
    "qpruntime.inference.precision.solved": ("PrecisionSolved",),
    "qpruntime.inference.precision.solver": ("PrecisionPrior",),
    "qpruntime.inference.precision.symbolic": ("Shape", "Symbolic"),
    "qpruntime.inference.problem": ("Problem",),
    "qpruntime.inference.site_update": ("Marginals",),
    "qpruntime.inference.sites": ("Sites",),
    "qpruntime.inference.sparse.inducing": ("Inducing",),
    "qpruntime.inference.sparse.solution": ("SparseSolution",),
    "qpruntime.kernels.categorical": ("Categories",),
    "qpruntime.kernels.columns": ("On",),
    "qpruntime.kernels.markov": ("Factor", "States", "Term"),
    "qpruntime.kernels.same": ("Same",),
    "qpruntime.kernels.state": ("StateSpace",),
    "qpruntime.learning.maximise": ("Optimum",),
    "qpruntime.learning.slopes": ("Slopes",),
    "qpruntime.learning.nodes.result": ("Integrated",),
    "qpruntime.learning.options": ("Search", "Series"),
    "qpruntime.learning.options_inducing": ("Inducing",),
    "qpruntime.learning.options_integrate": ("Integrate",),
    "qpruntime.learning.options_joint": ("Joint",),
    "qpruntime.learning.policy.judged": ("Stage",),
    "qpruntime.learning.warp": ("Warp",),
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
    "qpruntime.inference.precision.trials:held_trials",
    "qpruntime.likelihoods.registry:_holding",
    "qpruntime.likelihoods.registry:get",
    "qpruntime.likelihoods.registry:holding",
    "qpruntime.projection.opening:reopen",
    "qpruntime.projection.projector:Projector",
    "qpruntime.projection.signed:signed",
    "qpruntime.inference.sparse.rule:Rule",
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
