"""Hyper-parameters of one process, integrated: nodes with weights, and a posterior at each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array
from qpruntime.likelihoods import Likelihood

__all__ = ["Integrated"]


@dataclass(frozen=True, eq=False)
class Integrated:
    """What hyper-parameters may be, how likely that is, and the posterior with each of them.

    Attributes
    ----------
    design : {"grid", "composite", "importance", "nuts"}
        How nodes were found.
    names : tuple of str, length p
        Of the parameters: those of the kernel, then those of the likelihood.
    theta : ndarray, shape (J, p)
        Their logarithms at the nodes, in the units of `Optimum.theta`.
    weights : ndarray, shape (J,)
        They sum to 1.
    log_evidence : float
        Log of the evidence integrated over the prior of the parameters; NaN of a chain.
    effective : float
        Effective number of nodes: 1 over the sum of squared weights; of a chain by its
        autocorrelations.
    pareto_k : float
        Shape of the tail of importance weights of a Student t around the mode, by which the
        density is far from it: above 0.7 such weights are not relied on. NaN of a chain.
    evaluations : int
        How often the evidence was computed.
    kernels, likelihoods, posteriors : tuple, length J
        At the nodes, as `kernel_`, `likelihood_` and `posterior_` are at the mode.
    """

    design: str
    names: tuple[str, ...]
    theta: Array
    weights: Array
    log_evidence: float
    effective: float
    pareto_k: float
    evaluations: int
    kernels: tuple[Kernel, ...]
    likelihoods: tuple[Likelihood, ...]
    posteriors: tuple[Any, ...]

    def moved(self, change: Callable[[Kernel, Any], tuple[Kernel, Any]]) -> Integrated:
        """Return the same with other kernels and posteriors, as of features in other units."""
        pairs = zip(self.kernels, self.posteriors, strict=True)
        kernels, posteriors = zip(*(change(*pair) for pair in pairs), strict=True)
        return replace(self, kernels=kernels, posteriors=posteriors)

    def __repr__(self) -> str:
        return (
            f"Integrated({self.design}: {len(self.weights)} nodes of {', '.join(self.names)}; "
            f"effective {self.effective:.1f}, k {self.pareto_k:.2f}, {self.evaluations} "
            "evaluations)"
        )
