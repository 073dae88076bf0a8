"""Peers of sparse inference, run by an interpreter that has them: GPyTorch's SVGP, GPBoost.

    PYTHON scripts/sparse_peers.py svgp SET.npz --rate 0.01 --seconds 45
    PYTHON scripts/sparse_peers.py fitc SET.npz

One thread, CPU seconds. Prints one JSON document: what the test rows' negative log density was
after so many seconds, and the calibration error at the end.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr

_BATCH = 1024
# Looks at the test rows between the first and the last second.
_LOOKS = 12


def judge(mean: np.ndarray, variance: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Negative log probability and calibration error, 15 bins, of probit predictions."""
    z = mean / np.sqrt(1.0 + variance)
    p, hit = ndtr(z), y > 0.0
    bins = np.minimum((15.0 * p).astype(int), 14)
    gaps = [abs(np.sum(p[bins == k] - hit[bins == k])) for k in range(15)]
    return float(-np.mean(log_ndtr(y * z))), float(np.sum(gaps) / len(y))


def svgp(data: Any, rate: float, seconds: float) -> dict[str, Any]:
    """GPyTorch's SVGP, float32, Adam, batches of 1024, inducing inputs free."""
    import gpytorch
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    X, y, Z = (torch.tensor(data[k], dtype=torch.float32) for k in ("X", "y", "Z"))
    points = torch.tensor(data["X_test"], dtype=torch.float32)

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            chosen = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
            strategy = gpytorch.variational.VariationalStrategy(self, Z, chosen)
            super().__init__(strategy)
            self.mean_module = gpytorch.means.ZeroMean()
            shape = gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[1])
            self.covar_module = gpytorch.kernels.ScaleKernel(shape)
            self.covar_module.outputscale = 1.0
            shape.lengthscale = 2.0

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    model, likelihood = Model(), gpytorch.likelihoods.BernoulliLikelihood()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, len(y))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    labels = (y + 1.0) / 2.0
    spent, path, begun = 0.0, [], time.process_time()

    def look() -> None:
        model.eval()
        with torch.no_grad():
            found = [model(points[k : k + 2000]) for k in range(0, len(points), 2000)]
        mean = np.concatenate([f.mean.numpy() for f in found]).astype(float)
        variance = np.concatenate([f.variance.numpy() for f in found]).astype(float)
        path.append([spent, *judge(mean, variance, data["y_test"])])
        model.train()

    model.train()
    while spent < seconds:
        order = torch.randperm(len(y))
        for start in range(0, len(y), _BATCH):
            some = order[start : start + _BATCH]
            optimizer.zero_grad()
            loss = -bound(model(X[some]), labels[some])
            loss.backward()
            optimizer.step()
            spent += time.process_time() - begun
            if spent > seconds * (len(path) + 1) / _LOOKS:
                look()
            begun = time.process_time()
            if spent >= seconds:
                break
    return {"path": path}


def fitc(data: Any, approximation: str) -> dict[str, Any]:
    """GPBoost's Laplace approximation with FITC, or Vecchia."""
    import gpboost

    begun = time.process_time()
    options: dict[str, Any] = {"gp_approx": approximation}
    if approximation == "fitc":
        options |= {"num_ind_points": len(data["Z"]), "ind_points_selection": "kmeans++"}
    model = gpboost.GPModel(
        gp_coords=data["X"],
        cov_function="gaussian_ard",
        likelihood="bernoulli_probit",
        num_parallel_threads=1,
        **options,
    )
    model.fit(y=(data["y"] + 1.0) / 2.0)
    found = model.predict(gp_coords_pred=data["X_test"], predict_var=True, predict_response=False)
    spent = time.process_time() - begun
    return {"path": [[spent, *judge(found["mu"], found["var"], data["y_test"])]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peer", choices=("svgp", "fitc", "vecchia"))
    parser.add_argument("data")
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--seconds", type=float, default=45.0)
    wanted = parser.parse_args()
    data = np.load(wanted.data)
    if wanted.peer == "svgp":
        found = svgp(data, wanted.rate, wanted.seconds)
    else:
        found = fitc(data, wanted.peer)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
