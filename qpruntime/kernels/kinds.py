"""Numbers by which compiled code knows shapes and states; those of a kernel are in its file."""

from __future__ import annotations

__all__ = ["CONSTANT", "GENERAL", "LINE", "MATERN_1", "MATERN_3", "MATERN_5", "RBF", "TURN"]

#: States that are stepped in closed form. MATERN_1, 3 and 5 are shapes too, and RBF is one.
CONSTANT, MATERN_1, MATERN_3, MATERN_5, LINE, RBF = 0, 1, 2, 3, 4, 5
#: GENERAL + j is the j-th factor of a state that is stepped by series.
GENERAL = 10
#: TURN + j is the j-th harmonic, whose rate is the period itself.
TURN = 100
