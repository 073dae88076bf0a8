"""Gaussian-process inference with non-Gaussian likelihoods by quantile and expectation propagation.

Public names load on first use, so that ``import qpruntime`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from qpruntime.criticism.loo import compare
    from qpruntime.criticism.simulation import check_calibration
    from qpruntime.errors import (
        ConvergenceWarning,
        CorrectionWarning,
        InputError,
        NumericalError,
        QPError,
        SamplingWarning,
        TableError,
    )
    from qpruntime.estimators.classifier import GPClassifier
    from qpruntime.estimators.ordinal import GPOrdinal
    from qpruntime.estimators.poisson import GPPoissonRegressor
    from qpruntime.estimators.preference import GPPreference
    from qpruntime.estimators.regressor import GPRegressor
    from qpruntime.estimators.robust import GPRobustRegressor
    from qpruntime.estimators.survival import GPSurvival
    from qpruntime.inference.binned_counts import count_bins
    from qpruntime.inference.infer import infer
    from qpruntime.inference.local.posterior import LocalPosterior
    from qpruntime.inference.markov.infer import infer_series
    from qpruntime.inference.markov.posterior import SeriesPosterior
    from qpruntime.inference.multiclass.infer import infer_classes
    from qpruntime.inference.multiclass.posterior import ClassPosterior
    from qpruntime.inference.multiclass.sparse import SparseClassPosterior, infer_sparse_classes
    from qpruntime.inference.posterior import Posterior
    from qpruntime.inference.precision.infer import infer_precision
    from qpruntime.inference.precision.posterior import PrecisionPosterior
    from qpruntime.inference.sparse.infer import infer_sparse
    from qpruntime.inference.sparse.posterior import SparsePosterior
    from qpruntime.interop.functions import LikelihoodFunctions, functions
    from qpruntime.learning.options import Inducing, Integrate, Search, Series
    from qpruntime.likelihoods import Likelihood
    from qpruntime.persistence.file import load
    from qpruntime.projection.open import open_table
    from qpruntime.projection.projector import project
    from qpruntime.projection.sampling import project_sampled, project_samples
    from qpruntime.projection.table import Table

_HOME = {
    "ClassPosterior": "inference.multiclass.posterior",
    "ConvergenceWarning": "errors",
    "CorrectionWarning": "errors",
    "GPClassifier": "estimators.classifier",
    "GPPoissonRegressor": "estimators.poisson",
    "GPPreference": "estimators.preference",
    "GPRegressor": "estimators.regressor",
    "GPRobustRegressor": "estimators.robust",
    "GPOrdinal": "estimators.ordinal",
    "GPSurvival": "estimators.survival",
    "Inducing": "learning.options",
    "InputError": "errors",
    "Integrate": "learning.options",
    "Likelihood": "likelihoods",
    "LikelihoodFunctions": "interop.functions",
    "NumericalError": "errors",
    "LocalPosterior": "inference.local.posterior",
    "Posterior": "inference.posterior",
    "PrecisionPosterior": "inference.precision.posterior",
    "QPError": "errors",
    "SamplingWarning": "errors",
    "Search": "learning.options",
    "Series": "learning.options",
    "SeriesPosterior": "inference.markov.posterior",
    "SparseClassPosterior": "inference.multiclass.sparse",
    "SparsePosterior": "inference.sparse.posterior",
    "Table": "projection.table",
    "TableError": "errors",
    "check_calibration": "criticism.simulation",
    "compare": "criticism.loo",
    "count_bins": "inference.binned_counts",
    "functions": "interop.functions",
    "infer": "inference.infer",
    "infer_classes": "inference.multiclass.infer",
    "infer_precision": "inference.precision.infer",
    "infer_series": "inference.markov.infer",
    "infer_sparse": "inference.sparse.infer",
    "infer_sparse_classes": "inference.multiclass.sparse",
    "load": "persistence.file",
    "open_table": "projection.open",
    "project": "projection.projector",
    "project_sampled": "projection.sampling",
    "project_samples": "projection.sampling",
}

__all__ = [
    "ClassPosterior",
    "ConvergenceWarning",
    "CorrectionWarning",
    "GPClassifier",
    "GPOrdinal",
    "GPPoissonRegressor",
    "GPPreference",
    "GPRegressor",
    "GPRobustRegressor",
    "GPSurvival",
    "Inducing",
    "InputError",
    "Integrate",
    "Likelihood",
    "LikelihoodFunctions",
    "LocalPosterior",
    "NumericalError",
    "Posterior",
    "PrecisionPosterior",
    "QPError",
    "SamplingWarning",
    "Search",
    "Series",
    "SeriesPosterior",
    "SparseClassPosterior",
    "SparsePosterior",
    "Table",
    "TableError",
    "check_calibration",
    "compare",
    "count_bins",
    "functions",
    "infer",
    "infer_classes",
    "infer_precision",
    "infer_series",
    "infer_sparse",
    "infer_sparse_classes",
    "load",
    "open_table",
    "project",
    "project_sampled",
    "project_samples",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Takes as long as all else here; pyproject.toml alone states it.
        from importlib.metadata import version

        return version("qpruntime")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # List the submodules that are loaded, as for any package, without this file's own imports.
    package_prefix = f"{__name__}."
    loaded = {
        name
        for name, value in globals().items()
        if name.startswith("__") or getattr(value, "__name__", "") == package_prefix + name
    }
    return sorted({*loaded, *__all__, "__version__"})
