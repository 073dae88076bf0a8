"""`infer_sparse`: check arguments, iterate over the sites of all rows, return a posterior."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._validation import flag, no_kernel, number, whole
from qpruntime.dataframes.lazy_rows import as_array, inputs_of
from qpruntime.errors import InputError
from qpruntime.execution.resolve import executor_of
from qpruntime.execution.threads import ExecutorError, Threads, alone, threads_of
from qpruntime.inference.fixed_point.convergence import (
    DEFAULT_MAX_SWEEPS,
    DEFAULT_TOL,
    Limits,
    warn_unsettled,
)
from qpruntime.inference.local.posterior import LocalPosterior, local_of
from qpruntime.inference.local.storage import held_inputs
from qpruntime.inference.posterior import moved_to
from qpruntime.inference.problem import check_sites
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.checkpoint import SitesFile
from qpruntime.inference.sparse.engine import MEMORY, Engine
from qpruntime.inference.sparse.functionals import AlongRows, along
from qpruntime.inference.sparse.iterate import settle
from qpruntime.inference.sparse.posterior import (
    SparsePosterior,
    checked_rows,
    conclude,
    moved_by_prior,
)
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import Inference, Projector
from qpruntime.projection.table import Table

if TYPE_CHECKING:
    from sklearn.gaussian_process.kernels import Kernel

__all__ = ["infer_sparse"]


@alone
def infer_sparse(
    X: ArrayLike,
    y: ArrayLike,
    kernel: Kernel,
    Z: ArrayLike,
    likelihood: str | Likelihood | None = None,
    method: Inference = "qp",
    table: Table | str | os.PathLike[str] | None = None,
    mean: ArrayLike = 0.0,
    *,
    power: float = 0.5,
    weights: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    tol: float = DEFAULT_TOL,
    max_sweeps: int = DEFAULT_MAX_SWEEPS,
    damping: float = 1.0,
    p: float | None = None,
    sites: Sites | Sequence[ArrayLike] | None = None,
    jitter: float = 1e-8,
    memory: float = MEMORY,
    n_jobs: int | None = None,
    scheduler: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    nearest: int = 0,
    operator: ArrayLike | None = None,
) -> SparsePosterior | LocalPosterior:
    """Approximate the posterior of a Gaussian process by sparse power EP or QP, in O(N M^2).

    Parameters
    ----------
    X : array-like, shape (N, d)
        Inputs. A zarr array, memory map, dask array or data frame is read in chunks of at
        most 32 768 rows and never held in memory, unlike y, weights and means.
    y : array-like, shape (N,)
        Observations; -1 and +1 for ``"probit"``.
    kernel : scikit-learn kernel
        Kernel with fixed hyper-parameters. Its white noise is part of the latent values.
    Z : array-like, shape (M, d)
        Inducing inputs, usually M <= N; equal or faraway ones only cost time.
    likelihood, method, table, p
        As for `qpruntime.infer`, except method "vb", which small powers of EP approach.
    mean : float or array-like, shape (N,)
        Prior mean of f.
    power : float in (0, 1]
        Power 1 is FITC, and overfits if Z is learnt; small powers approach the variational bound.
    weights : array-like, shape (N,), optional
        Powers of the single likelihoods, at least 0.
    scale : array-like, shape (N,), optional
        Positive numbers: row n observes ``scale[n] * f(X[n])``, in the terms of ``likelihood``. For
        counts with exposures and the square link, give the square roots of the exposures. All
        results are those of f.
    tol, max_sweeps, damping
        As for `qpruntime.infer`.
    sites : (tau, nu), optional
        Sites to start from, each of shape (N,), instead of the prior.
    jitter : float
        Least jitter on the diagonal of k(Z, Z), relative to its mean; it grows up to 1e-4 if
        necessary.
    memory : float
        Bytes for caching features of rows between passes, M numbers per row; a run takes longer if
        they do not fit. Nothing else grows by more than 40 bytes per row.
    n_jobs : int, optional
        Number of threads; by default the number of cores, and -2 leaves one core out. Results are
        the same, bit for bit.
    scheduler : str, optional
        Address of a dask scheduler whose workers compute instead, to the same bits on processors of
        one kind. They need this package and access to `X`: zarr stores are opened where they are,
        dask graphs are computed there, and arrays of this process are sent with every pass.
    checkpoint : path, optional
        File that sites are written to every half minute.
    resume : bool
        Continue from the sites of `checkpoint`, if that file exists.
    nearest : int
        Number of nearest rows of each point that correct its prediction, because the part that Z
        leaves out is local. The posterior then holds all rows. If `X` is read in chunks and takes
        more than `memory` bytes, they are in temporary files, which are deleted with the posterior.
    operator : scipy sparse or array-like, shape (N, n), optional
        Observation i then sees ``operator[i] @ f(X)`` for X (n, d), with at most 32 entries that
        are not 0, such as games of many players. `y`, `weights`, `scale`, `sites` and row results
        are of the N observations; `mean` and predictions are of f. The part that Z leaves out is
        independent between observations, even if they share an input. For a few thousand inputs
        `qpruntime.infer` leaves nothing out.

    Returns
    -------
    SparsePosterior
        Posterior; with `nearest` it is a `LocalPosterior`, which wraps one.

    Raises
    ------
    InputError
        If an argument is not usable; the message says which and what to do.
    NumericalError
        If double precision does not suffice.

    Warns
    -----
    ConvergenceWarning
        If the sites have not settled after `max_sweeps`, or settled only with precisions held at
        zero.

    See Also
    --------
    qpruntime.SparsePosterior, qpruntime.LocalPosterior, qpruntime.infer,
    qpruntime.infer_sparse_classes

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime import infer_sparse
    >>> X = np.linspace(-3.0, 3.0, 200)[:, None]
    >>> post = infer_sparse(X, np.sign(np.sin(2.0 * X[:, 0])), RBF(1.0), X[::20], method="ep")
    >>> post.converged, round(post.log_evidence, 4)
    (True, -48.8718)
    """
    if method == "vb":
        raise InputError('method "vb" is dense only; small powers of "ep" tend to it: power=0.05')
    if isinstance(kernel, type) or not (callable(kernel) and hasattr(kernel, "diag")):
        raise no_kernel(kernel)
    projector = Projector(likelihood, method, table, p)
    inducing = np.asarray(inputs_of(as_array(Z, "Z"), "Z"))
    latent_kernel = kernel
    if operator is None:
        checked = checked_rows(X, y, projector, power, weights, mean, inducing.shape[1], scale)
    else:
        if nearest:
            raise InputError("nearest cannot act along an operator: leave it out")
        X, mean, prior = along(operator, X, mean, inducing.shape[1])
        kernel = AlongRows(kernel, inducing.shape[1])
        checked = checked_rows(X, y, projector, power, weights, mean, X.shape[1], scale)
        checked = checked._replace(prior=prior)
    limits = Limits.checked(tol, max_sweeps, damping)
    memory = number(memory, "memory", above=-1.0)
    jitter = number(jitter, "jitter", above=-1e-300, most=1e-4)
    nearest = whole(nearest, "nearest", 0)
    start = check_sites(sites, checked.rows.n, checked.rule.nonnegative)
    kept = None if checkpoint is None else SitesFile(checkpoint)
    if flag(resume, "resume") and kept is None:
        raise InputError("resume=True needs checkpoint=, the file to go on from")
    with executor_of(threads_of(n_jobs), scheduler) as executor:
        options: Any = {"jitter": jitter, "memory": memory, "executor": executor}
        engine = Engine(checked.rows, checked.rule, kernel, inducing, **options)
        try:
            if not (kept and resume and kept.restore(engine)) and start is not None:
                engine.sites = moved_by_prior(start, checked.rows, -1.0)
            ended = settle(engine, limits, kept.offer if kept else None)
            posterior = conclude(engine, ended, checked.prior, limits)
            if operator is not None:
                posterior = moved_to(posterior, latent_kernel, posterior.Z, lambda Z: Z)
        except ExecutorError as error:
            raise ExecutorError(f"{error}{kept.hint() if kept else ''}") from error
    engine.executor = Threads(threads_of(n_jobs))
    warn_unsettled(ended, limits.tol, checked.rows.n)
    return local_of(posterior, held_inputs(checked.rows, memory), nearest) if nearest else posterior
