"""Thousands of fits in one process cost no more memory and time in the end than at the beginning.

Ten thousand: ``python -m tests.tools.soak 10000``.
"""

import numpy as np
import pytest

from tests.tools.soak import soak


@pytest.mark.slow
def test_memory_and_pace_do_not_grow(small_table):
    memory, pace = soak(2000, small_table)
    # After the first block: what is loaded and compiled once is there.
    assert memory[-1] - memory[0] < 20e6
    # Processor time per fit, the second half against the first; noise of a busy machine is 10 %.
    assert np.median(pace[5:]) < 1.5 * np.median(pace[:5])
