"""Peers of sparse inference, run by an interpreter that has them: GPyTorch's SVGP, GPBoost.

    PYTHON -m scripts.benchmarks.peers.elsewhere svgp SET.npz RATE SECONDS MOST

One thread, CPU seconds, MOST until it is killed. Prints one JSON document: after so many seconds
the negative log probability of the test rows, and the calibration error.
"""

import json
import resource
import sys
import time
from typing import Any

import numpy as np

from scripts.benchmarks.metrics import judge
from scripts.benchmarks.peers.svgp import process

_BATCH = 1024
# Looks at the test rows between the first and the last second.
_LOOKS = 12


def svgp(data: Any, rate: float, seconds: float) -> dict[str, Any]:
    """GPyTorch's SVGP, float32, Adam, batches of 1024, inducing inputs free."""
    import gpytorch
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    X, y, Z = (torch.tensor(data[k], dtype=torch.float32) for k in ("X", "y", "Z"))
    points = torch.tensor(data["X_test"], dtype=torch.float32)

    shape = gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[1])
    model = process(Z, gpytorch.means.ZeroMean(), shape, 2.0)
    model.covar_module.outputscale = 1.0
    likelihood, labels = gpytorch.likelihoods.BernoulliLikelihood(), (y + 1.0) / 2.0
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, len(y))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
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


def main(peer: str, path: str, *numbers: str) -> None:
    """Run one peer on the arrays of a file."""
    rate, seconds, most = map(float, numbers)
    resource.setrlimit(resource.RLIMIT_CPU, (int(most), int(most) + 10))
    data = np.load(path)
    print(json.dumps(svgp(data, rate, seconds) if peer == "svgp" else fitc(data, peer)))


if __name__ == "__main__":
    main(*sys.argv[1:])
