"""Levels as numbers: whole numbers by their order, and all else by what is equal."""

from __future__ import annotations

import numpy as np

from qpruntime.dataframes.levels import numbers_of
from tests.tools.cases import every_case


@every_case(
    "levels, values",
    [
        (np.array([-3, 2, 7]), np.array([7, -3, 2, 8, -4, 3])),
        (np.array([5]), np.array([5, 4, 6])),
        (np.array([7, -3, 2]), np.array([7, -3, 2, 8])),  # not rising
        (np.array(["a", "c"]), np.array(["c", "b", "a"])),
        (np.array([1.5, 2.0]), np.array([2.0, 1.0])),
        (np.array([0, 1], dtype=np.int8), np.array([300, 1])),
        (np.array([], dtype=int), np.array([1])),
    ],
)
def test_each_value_has_the_place_of_its_level(levels, values):
    known = levels.tolist()
    wanted = [known.index(one) if one in known else -1 for one in values.tolist()]
    assert numbers_of(values, levels).tolist() == wanted
