"""A picture of constrained predictive entropy search in two dimensions.

    python -m scripts.examples bayesopt --figure figure.png

Gramacy's problem after some evaluations: mean of the objective, probability of feasibility, samples
of the minimiser, and what each function's next evaluation would tell.
"""

from argparse import Namespace
from pathlib import Path

import numpy as np

from qpruntime.bayesopt import Optimizer, condition, gains, sample_minimisers
from scripts.benchmarks.bayesopt_problems import PROBLEMS
from scripts.reports.figures import canvas

OPTIONS = {
    "figure": {"default": Path("bayesopt.png")},
    "evaluations": {"type": int, "default": 10},
    "seed": {},
    "side": {"type": int, "default": 60, "help": "of the grid that is drawn"},
}


def main(options: Namespace) -> None:
    """Optimise, then draw."""
    problem = PROBLEMS["gramacy"]
    opt = Optimizer(problem.bounds, 2, noise=0.0, random_state=options.seed)
    for _ in range(options.evaluations):
        x = opt.ask()
        opt.tell(x, f=problem.objective(x), c=problem.constraints(x))
    axis = np.linspace(0.0, 1.0, options.side)
    X = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    functions = opt.surrogates()
    drawn = sample_minimisers(functions, problem.bounds, 20, random_state=options.seed)
    posts = [condition(functions, x) for x in drawn.X_star]
    gain = gains(functions, posts, X)
    panels = {
        "mean of f": opt.predict(X)[0][0],
        "P(feasible), and the true edges": opt.probability(X),
        "gain of f (nats)": gain[0],
        "gain of c1": gain[1],
        "gain of c2": gain[2],
        "gain of all": gain.sum(axis=0),
    }
    told = np.array([opt.columns()["x0"], opt.columns()["x1"]])
    truth = np.array([problem.constraints(x) for x in X]).min(axis=1)
    best = opt.recommend()
    shape = (options.side, options.side)
    with canvas(options.figure, (12, 7.4), 110, (2, 3)) as axes:
        for ax, (title, values) in zip(axes.flat, panels.items(), strict=True):
            levels = np.linspace(0.0, gain.sum(axis=0).max(), 20) if "gain" in title else 20
            filled = ax.contourf(axis, axis, values.reshape(shape), levels=levels, extend="both")
            ax.figure.colorbar(filled, ax=ax)
            if title.startswith("P("):
                ax.contour(axis, axis, truth.reshape(shape), levels=[0.0], colors="white")
            ax.plot(*told, "o", color="black", markersize=4, label="evaluated")
            ax.plot(*drawn.X_star.T, "x", color="red", markersize=6, label="samples of x*")
            ax.plot(*best, "*", color="orange", markersize=14, label="recommended")
            ax.set(title=title, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        axes[0, 0].legend(loc="upper right", fontsize=8)
