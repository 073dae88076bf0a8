"""Clusters of rows in a process that forks."""

import os

import pytest

from tests.tools.commands import python

FORK = """
import multiprocessing as mp
import numpy as np
from qpruntime.learning.inducing_points import clusters

def found():
    X = np.random.default_rng(0).normal(size=(5000, 3))
    return clusters(X, 100, np.random.default_rng(1))

def child(queue):
    queue.put(found())

here, context = found(), mp.get_context("fork")
queue = context.Queue()
process = context.Process(target=child, args=(queue,))
process.start()
there = queue.get(timeout=60)
process.join()
np.testing.assert_array_equal(here, there)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_clusters_as_its_parent_did():
    """A team of OpenMP threads in the parent would leave the child waiting for them."""
    python("-c", FORK, environment={"OMP_NUM_THREADS": "2"}, timeout=120)
