"""Results do not depend on whose arithmetic it is: other BLAS kernels, threads, instructions.

OpenBLAS has kernels for every family of processors, which add in different orders, and numba fuses
multiplications and additions where the processor can. Each process here runs what is nearest to the
limits of double precision as another machine would.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from llvmlite import binding

from tests.tools.commands import python

TOP = Path(__file__).parents[1]

# Prints the name of the BLAS kernels in use, and what came out.
PREAMBLE = """
import json, sys
import numpy as np
from threadpoolctl import threadpool_info
def tell(found):
    kernels = {one.get("architecture") for one in threadpool_info()}
    print(json.dumps({"kernels": sorted(str(name) for name in kernels), "found": found}))
"""

# A problem of `test_never_nan` whose sites are held at zero, so that the search divides by the
# variances: one is 3e-16 of the prior's, nothing or less under some BLAS kernels. And a sound one.
HARD = """
from tests import test_never_nan
tell([test_never_nan.outcome(43, test_never_nan.powered), test_never_nan.outcome(11)])
"""

# One site that dominates, one that says nothing: sums of squares, fused and in any order.
NARROW = """
from qpruntime.inference.dense.cholesky_kernels import half_difference, scaled_upper
from qpruntime.inference.dense.cholesky_kernels import squares_of_rows
from qpruntime._special import log_ndtr
K = np.array([[2.0, 1.0], [1.0, 1.0]])
B = scaled_upper(K, np.array([1e8, 0.0]))
tell([B[0, 0], B[0, 1], B[1, 1], *squares_of_rows(np.array([[3.0, 1e-9], [0.0, 1e-200]])),
      half_difference(np.array([1.0, 3.0]), np.array([2.0, 0.0]), np.eye(2))[0, 0],
      log_ndtr(-1e8), log_ndtr(-5.0), log_ndtr(1.0)])
"""


def under(code, **settings):
    """Run code in a process of these settings; return its BLAS kernels and what it found."""
    places = os.pathsep.join([str(TOP), os.environ.get("PYTHONPATH", "")])
    environment = settings | {"PYTHONPATH": places}
    return json.loads(python("-c", PREAMBLE + code, environment=environment, timeout=600).stdout)


# The number of threads is folded in: one, two, and more than there are cores. Zen has the kernels
# of Haswell.
@pytest.mark.parametrize(
    ("core", "threads"),
    [
        ("Nehalem", 8),
        pytest.param("Haswell", 2, marks=pytest.mark.slow),
        pytest.param("SkylakeX", 1, marks=pytest.mark.slow),
        pytest.param("Zen", 1, marks=pytest.mark.slow),
    ],
)
def test_hard_problems_end_as_anywhere_under_other_blas_kernels(core, threads):
    needs = {"Nehalem": "sse4.2", "SkylakeX": "avx512f"}.get(core, "avx2")
    if not binding.get_host_cpu_features().get(needs, False):
        pytest.skip(f"the kernels for {core} take {needs}, which this processor has not")
    told = under(HARD, OPENBLAS_CORETYPE=core, OPENBLAS_NUM_THREADS=str(threads))
    if not set(told["kernels"]) & {core, "Haswell" if core == "Zen" else core}:
        pytest.skip(f"the BLAS has {told['kernels']} whatever OPENBLAS_CORETYPE={core} says")
    # `outcome` asserts that everything is finite; the end of the sound problem is known besides.
    assert told["found"][1] == "converged"


@pytest.mark.slow
def test_kernels_without_the_instructions_of_this_processor():
    found = under(NARROW, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")["found"]
    # log Phi(-1e8) = -x^2/2 - log(x sqrt(2 pi)) to 1e-16 x^-2; the others from mpmath at 30 digits.
    far = -0.5e16 - np.log(1e8 * np.sqrt(2.0 * np.pi))
    expected = [2e16 + 1.0, 0.0, 1.0, 9.0 + 1e-18, 0.0, 0.5 - 2.0]
    expected += [far, -15.064998393988727, -0.17275377902344985]
    np.testing.assert_allclose(found, expected, rtol=4e-16)
