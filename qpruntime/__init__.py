"""Gaussian-process inference with non-Gaussian likelihoods by quantile and expectation propagation.

Public names load on first use, so that ``import qpruntime`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from qpruntime.criticism.loo import compare as compare
    from qpruntime.criticism.simulation import check_calibration as check_calibration
    from qpruntime.errors import (
        ConvergenceWarning as ConvergenceWarning,
        CorrectionWarning as CorrectionWarning,
        InputError as InputError,
        NumericalError as NumericalError,
        QPError as QPError,
        SamplingWarning as SamplingWarning,
        TableError as TableError,
    )
    from qpruntime.estimators.classifier import GPClassifier as GPClassifier
    from qpruntime.estimators.ordinal import GPOrdinal as GPOrdinal
    from qpruntime.estimators.poisson import GPPoissonRegressor as GPPoissonRegressor
    from qpruntime.estimators.preference import GPPreference as GPPreference
    from qpruntime.estimators.regressor import GPRegressor as GPRegressor
    from qpruntime.estimators.robust import GPRobustRegressor as GPRobustRegressor
    from qpruntime.estimators.survival import GPSurvival as GPSurvival
    from qpruntime.inference.binned_counts import count_bins as count_bins
    from qpruntime.inference.infer import infer as infer
    from qpruntime.inference.local.posterior import LocalPosterior as LocalPosterior
    from qpruntime.inference.markov.infer import infer_series as infer_series
    from qpruntime.inference.markov.posterior import SeriesPosterior as SeriesPosterior
    from qpruntime.inference.multiclass.infer import infer_classes as infer_classes
    from qpruntime.inference.multiclass.posterior import ClassPosterior as ClassPosterior
    from qpruntime.inference.multiclass.sparse import (
        SparseClassPosterior as SparseClassPosterior,
        infer_sparse_classes as infer_sparse_classes,
    )
    from qpruntime.inference.posterior import Posterior as Posterior
    from qpruntime.inference.precision.infer import infer_precision as infer_precision
    from qpruntime.inference.precision.posterior import PrecisionPosterior as PrecisionPosterior
    from qpruntime.inference.sparse.infer import infer_sparse as infer_sparse
    from qpruntime.inference.sparse.posterior import SparsePosterior as SparsePosterior
    from qpruntime.interop.functions import (
        LikelihoodFunctions as LikelihoodFunctions,
        functions as functions,
    )
    from qpruntime.learning.options import (
        Inducing as Inducing,
        Integrate as Integrate,
        Search as Search,
        Series as Series,
    )
    from qpruntime.likelihoods import Likelihood as Likelihood
    from qpruntime.persistence.file import load as load
    from qpruntime.projection.open import open_table as open_table
    from qpruntime.projection.projector import project as project
    from qpruntime.projection.sampling import (
        project_sampled as project_sampled,
        project_samples as project_samples,
    )
    from qpruntime.projection.table import Table as Table

#: Public names by the module that defines them.
_NAMES_OF = {
    "criticism.loo": ["compare"],
    "criticism.simulation": ["check_calibration"],
    "errors": [
        "ConvergenceWarning",
        "CorrectionWarning",
        "InputError",
        "NumericalError",
        "QPError",
        "SamplingWarning",
        "TableError",
    ],
    "estimators.classifier": ["GPClassifier"],
    "estimators.ordinal": ["GPOrdinal"],
    "estimators.poisson": ["GPPoissonRegressor"],
    "estimators.preference": ["GPPreference"],
    "estimators.regressor": ["GPRegressor"],
    "estimators.robust": ["GPRobustRegressor"],
    "estimators.survival": ["GPSurvival"],
    "inference.binned_counts": ["count_bins"],
    "inference.infer": ["infer"],
    "inference.local.posterior": ["LocalPosterior"],
    "inference.markov.infer": ["infer_series"],
    "inference.markov.posterior": ["SeriesPosterior"],
    "inference.multiclass.infer": ["infer_classes"],
    "inference.multiclass.posterior": ["ClassPosterior"],
    "inference.multiclass.sparse": ["SparseClassPosterior", "infer_sparse_classes"],
    "inference.posterior": ["Posterior"],
    "inference.precision.infer": ["infer_precision"],
    "inference.precision.posterior": ["PrecisionPosterior"],
    "inference.sparse.infer": ["infer_sparse"],
    "inference.sparse.posterior": ["SparsePosterior"],
    "interop.functions": ["LikelihoodFunctions", "functions"],
    "learning.options": ["Inducing", "Integrate", "Search", "Series"],
    "likelihoods": ["Likelihood"],
    "persistence.file": ["load"],
    "projection.open": ["open_table"],
    "projection.projector": ["project"],
    "projection.sampling": ["project_sampled", "project_samples"],
    "projection.table": ["Table"],
}
_HOME = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = sorted(_HOME)


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
