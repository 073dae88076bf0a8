"""NumPy as an array library of the formulas, to compare them with the kernels."""

import math

import numpy as np
from scipy.special import erf, erfc, gammaln

from qpruntime.interop.array_operations import MARGIN, ArrayLibrary

__all__ = ["NumPy"]


class NumPy(ArrayLibrary):
    """Operations of NumPy and SciPy."""

    exp, log, log1p, expm1, sqrt = np.exp, np.log, np.log1p, np.expm1, np.sqrt
    abs, tanh, floor = np.abs, np.tanh, np.floor
    where = staticmethod(np.where)  # the others do not bind
    maximum, minimum = np.maximum, np.minimum
    erf, erfc, lgamma = erf, erfc, gammaln

    def arrays(self, *values):
        return list(np.broadcast_arrays(*(np.asarray(v, float) for v in values)))

    def constant(self, value, like):
        return np.asarray(value, like.dtype)

    def exponent(self, like):
        return math.log(np.finfo(like.dtype).max) - MARGIN

    def stop_gradient(self, x):
        return x

    def take(self, table, index):
        return table[index.astype(np.int64)]

    def total(self, x):
        return x.sum(axis=-1)

    def largest(self, x):
        return x.max(axis=-1)

    def derived(self, value, slope):
        return value
