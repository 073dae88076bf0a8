"""Thousands of fits in one process cost no more memory and time at the end than at first."""

import gc
import resource
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import qpruntime as qp


def one_fit(number, table):
    """Fit a model that depends on `number`; sizes, methods and estimators take turns."""
    rng = np.random.default_rng(number % 100)
    n = (5, 12, 30, 60)[number % 4]
    X = rng.standard_normal((n, 2))
    labels = np.where(X[:, 0] + 0.3 * rng.standard_normal(n) > 0.0, 1.0, -1.0)
    labels[:2] = 1.0, -1.0
    kind = number % 7
    if kind == 0:
        model = qp.GPClassifier(optimize=qp.Search(max_iter=3)).fit(X, labels)
        return model.predict_proba(X)
    if kind == 1:
        model = qp.GPPoissonRegressor(optimize=qp.Search(max_iter=3)).fit(X, rng.poisson(3.0, n))
        return model.predict_quantiles(X, [0.1, 0.9])
    K = 2.0 * np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1))
    if kind == 2:
        post = qp.infer(K, labels, table=qp.open_table(table, outside="exact"))
    elif kind == 3:
        post = qp.infer(K, rng.poisson(4.0, n).astype(float), "poisson", mean=2.0)
    elif kind == 4:
        post = qp.infer(K, labels, method="vb")
    elif kind == 5:
        post = qp.infer(K, labels, "heaviside", order="random", random_state=number)
    else:
        post = qp.infer(K, labels, method="ep", order="parallel")
        qp.project("probit", rng.standard_normal(200), 1.5, 1)
    post.predict(K[:3], K.diagonal()[:3])
    return post.evidence_gradient(K)


def soak(fits, table, warm_up=300, blocks=10):
    """Return resident bytes and seconds of processor time per fit after each block of fits."""
    memory, pace = [], []
    with warnings.catch_warnings(action="ignore", category=qp.ConvergenceWarning):
        for number in range(warm_up):
            one_fit(number, table)
        for block in range(blocks):
            begin = time.process_time()
            count = fits // blocks
            for number in range(block * count, (block + 1) * count):
                one_fit(number, table)
            pace.append((time.process_time() - begin) / count)
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            memory.append(pages * resource.getpagesize())
    return memory, pace


@pytest.mark.slow
def test_memory_and_pace_do_not_grow(small_table):
    memory, pace = soak(2000, small_table)
    # After the first block: what is loaded and compiled once is there.
    assert memory[-1] - memory[0] < 20e6
    # Processor time per fit, the second half against the first; noise of a busy machine is 10 %.
    assert np.median(pace[5:]) < 1.5 * np.median(pace[:5])
