"""Start of training: hidden layers hand principal scores of their inputs upwards."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from qpruntime._typing import Array
from qpruntime.deep.layers import Layer
from qpruntime.errors import InputError

__all__ = ["first_layers"]

#: Rows that distances are made of, at most.
_PAIRED = 500
#: Precision of sites of hidden and of last layers, noise, and the size of random numbers.
_SURE, _UNSURE, _NOISE, _SMALL = 100.0, 0.01, 0.01, 0.01


def first_layers(
    X: Array, hidden: Sequence[int], inducing: int, linear: bool, rng: np.random.Generator
) -> tuple[Layer, ...]:
    """Return the layers that training starts from.

    Parameters
    ----------
    X : ndarray, shape (N, D)
        Standardised rows, or a sample of them.
    hidden : sequence of int
        Widths of the hidden layers; the last layer has one output.
    inducing : int
        Inducing inputs of every layer.
    linear : bool
        Whether hidden layers have the scores for their mean, which their functions otherwise begin
        with.

    Raises
    ------
    InputError
        If there are fewer different rows than inducing inputs.
    """
    different = len(np.unique(X, axis=0))
    if different < inducing:
        raise InputError(
            f"inducing is {inducing}, but X has {different} different rows: "
            f"take inducing={different} or fewer"
        )
    layers, inputs = [], X
    for width in hidden:
        Z = _centres(inputs, inducing, rng)
        directions = _scores(inputs, width, rng)
        layer = _layer(inputs, Z, width, _SURE)
        if linear:
            layer = layer._replace(slope=directions.T)
        else:
            # eta so that q has the scores for its means at Z: those of white w are L^-1 t(Z).
            inverse = np.linalg.inv(np.linalg.cholesky(_covariance(layer)))
            layer = layer._replace(eta=(1.0 + _SURE) * (inverse @ (Z @ directions)).T)
        noise = _SMALL * rng.standard_normal(layer.eta.shape)
        layers.append(layer._replace(eta=layer.eta + noise))
        inputs = inputs @ directions
    last = _layer(inputs, _centres(inputs, inducing, rng), 1, _UNSURE)
    layers.append(last._replace(eta=_SMALL * rng.standard_normal(last.eta.shape)))
    return tuple(layers)


def _layer(inputs: Array, Z: Array, width: int, precision: float) -> Layer:
    sample = inputs[:: -(-len(inputs) // _PAIRED)]
    gaps = np.sqrt(((sample[:, None] - sample) ** 2).sum(axis=2))[np.triu_indices(len(sample), 1)]
    middle = float(np.median(gaps)) or 1.0
    return Layer(
        Z=Z,
        log_scale=np.full(Z.shape[1], np.log(middle)),
        log_variance=np.array(0.0),
        log_noise=np.array(np.log(_NOISE)),
        eta=np.zeros((width, len(Z))),
        root=np.tile(np.sqrt(precision) * np.eye(len(Z)), (width, 1, 1)),
        slope=None,
    )


def _covariance(layer: Layer) -> Array:
    gaps = (layer.Z[:, None] - layer.Z) / np.exp(layer.log_scale)
    return np.asarray(np.exp(-0.5 * (gaps**2).sum(axis=2)) + 1e-6 * np.eye(len(layer.Z)))


def _scores(inputs: Array, width: int, rng: np.random.Generator) -> Array:
    """Directions (D, width) whose scores have variance 1: leading ones, then random mixtures."""
    centred = inputs - inputs.mean(axis=0)
    _, sizes, rows = np.linalg.svd(centred, full_matrices=False)
    kept = min(width, int((sizes > 1e-6 * sizes[0]).sum()))
    directions = rows[:kept].T
    largest = np.abs(directions).argmax(axis=0)
    directions = directions * np.sign(directions[largest, np.arange(kept)])
    directions = directions / (sizes[:kept] / np.sqrt(len(inputs)))
    mixtures = rng.standard_normal((kept, width - kept))
    mixtures /= np.sqrt((mixtures**2).sum(axis=0))
    return np.hstack([directions, directions @ mixtures])


def _centres(inputs: Array, count: int, rng: np.random.Generator) -> Array:
    """Centres of clusters, which are no two the same."""
    seed = int(rng.integers(2**31))
    # Threads would add in the order in which they end.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different scores than centres
        clusters = KMeans(count, n_init=1, max_iter=50, random_state=seed).fit(inputs)
    centres = np.asarray(clusters.cluster_centers_)
    if len(np.unique(centres, axis=0)) < count:
        centres = centres + _SMALL * rng.standard_normal(centres.shape)
    return centres
