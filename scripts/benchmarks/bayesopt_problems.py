"""Problems of constrained Bayesian optimisation: functions, boxes and optima."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: How far a recommendation may be infeasible.
SLACK = 1e-3


class Problem(NamedTuple):
    """f and c of one point, the box, the value of the optimum, and what counts as its gap.

    `worst` is the gap of a point that is not feasible, `marks` numbers of evaluations at which
    recommendations are taken.
    """

    bounds: list[tuple[float, float]]
    objective: Callable[[Array], float]
    constraints: Callable[[Array], list[float]]
    optimum: float
    worst: float
    marks: tuple[int, ...]

    def gap(self, x: Array) -> float:
        """Distance from the optimum, or the worst if x is infeasible."""
        feasible = min(self.constraints(x), default=0.0) >= -SLACK
        return float(self.objective(x)) - self.optimum if feasible else self.worst


def hartmann(x: Array) -> float:
    """Hartmann's function of six variables."""
    a = np.array(
        [
            [10, 3, 17, 3.5, 1.7, 8],
            [0.05, 10, 17, 0.1, 8, 14],
            [3, 3.5, 1.7, 10, 17, 8],
            [17, 8, 0.05, 10, 0.1, 14],
        ]
    )
    p = 1e-4 * np.array(
        [
            [1312, 1696, 5569, 124, 8283, 5886],
            [2329, 4135, 8307, 3736, 1004, 9991],
            [2348, 1451, 3522, 2883, 3047, 6650],
            [4047, 8828, 8732, 5743, 1091, 381],
        ]
    )
    return float(-np.exp(-(a * (x - p) ** 2).sum(axis=1)) @ [1.0, 1.2, 3.0, 3.2])


@cache
def digits() -> tuple[Array, Array]:
    """The first 400 handwritten digits of scikit-learn, pixels from 0 to 1."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return X[:400] / 16.0, y[:400]


def svc_error(x: Array) -> float:
    """Error in 4 folds of a support vector machine; x is log10 of C and of gamma."""
    from sklearn.model_selection import cross_val_score

    X, y = digits()
    return float(1.0 - np.mean(cross_val_score(svc(x), X, y, cv=4)))


def svc_size(x: Array) -> float:
    """How far its support vectors, by which prediction takes time, are below 220; in hundreds."""
    X, y = digits()
    return float(2.2 - svc(x).fit(X, y).n_support_.sum() / 100.0)


def svc(x: Array) -> Any:
    """The machine itself."""
    from sklearn.svm import SVC

    return SVC(C=10.0 ** x[0], gamma=10.0 ** x[1])


PROBLEMS = {
    "gramacy": Problem(
        [(0.0, 1.0)] * 2,
        lambda x: x[0] + x[1],
        lambda x: [
            x[0] + 2 * x[1] + 0.5 * np.sin(2 * np.pi * (x[0] ** 2 - 2 * x[1])) - 1.5,
            1.5 - x[0] ** 2 - x[1] ** 2,
        ],
        0.5997880,
        1.132,
        (5, 10, 15, 20, 25, 30),
    ),
    "gardner2": Problem(
        [(0.0, 6.0)] * 2,
        lambda x: np.sin(x[0]) + x[1],
        lambda x: [-0.95 - np.sin(x[0]) * np.sin(x[1])],
        0.2532358,
        6.75,
        (10, 15, 20, 25, 30),
    ),
    "hartmann6": Problem(
        [(0.0, 1.0)] * 6,
        hartmann,
        lambda x: [1.0 - float(np.linalg.norm(x))],
        -3.322368,
        3.33,
        (20, 30, 40, 50, 60),
    ),
    # The optimum is the best of a grid of 17 x 17.
    "svc": Problem(
        [(-1.0, 3.0), (-4.0, 0.0)],
        svc_error,
        lambda x: [svc_size(x)],
        0.0175,
        1.0,
        (8, 12, 16, 20, 25),
    ),
}
#: What an evaluation of each function costs: 4 fits, and 1.
COSTS = {"svc": [4.0, 1.0]}
#: Problems whose objective is noisy; the others are known to have none.
NOISY = {"svc"}
