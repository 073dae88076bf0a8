"""GPyTorch's stochastic variational Gaussian process of two classes, as its tutorial has it.

Scaled features, Matérn 3/2 with one length-scale a feature, 600 inducing points that begin at rows,
batches of 1024, Adam with a rate that falls; it ends where a tenth of the rows says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtr
from sklearn.preprocessing import StandardScaler

_POINTS, _BATCH, _EPOCHS, _PATIENCE, _RATE = 600, 1024, 20, 2, 0.01


class SVGP:
    """Probit sites, in single precision.

    Parameters
    ----------
    seed : int
        Of rows held out, batches and inducing points.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def fit(self, X: Any, y: Any) -> SVGP:
        """Maximise the bound over batches; keep the epoch whose held-out loss is least."""
        import copy

        import gpytorch
        import torch

        torch.manual_seed(self._seed)
        rng = np.random.default_rng(self._seed)
        self._scaler = StandardScaler().fit(X)
        inputs = torch.tensor(self._scaler.transform(X), dtype=torch.float32)
        labels = torch.tensor(np.asarray(y) == np.unique(y)[1]).float()
        order = rng.permutation(len(labels))
        judged, rest = order[: len(order) // 10], order[len(order) // 10 :]
        points, d = inputs[rest[:_POINTS]], inputs.shape[1]
        shape = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=d)
        self._model = process(points, gpytorch.means.ConstantMean(), shape, float(np.sqrt(d)))
        likelihood = gpytorch.likelihoods.BernoulliLikelihood()
        bound = gpytorch.mlls.VariationalELBO(likelihood, self._model, num_data=len(rest))
        steps = torch.optim.Adam(self._model.parameters(), lr=_RATE)
        falls = torch.optim.lr_scheduler.MultiStepLR(steps, [int(0.75 * _EPOCHS)], 0.1)
        least, kept, since = np.inf, None, 0
        for _ in range(_EPOCHS):
            self._model.train()
            for some in np.array_split(rng.permutation(rest), max(1, len(rest) // _BATCH)):
                steps.zero_grad()
                loss = -bound(self._model(inputs[some]), labels[some])
                loss.backward()
                steps.step()
            falls.step()
            p = self._probabilities(inputs[judged])
            loss = float(-np.mean(np.log(np.where(labels[judged].numpy() > 0, p, 1.0 - p))))
            if loss < least - 1e-4:
                least, kept, since = loss, copy.deepcopy(self._model.state_dict()), 0
            else:
                since += 1
                if since == _PATIENCE:
                    break
        self._model.load_state_dict(kept)
        return self

    def _probabilities(self, inputs: Any) -> Any:
        import gpytorch
        import torch

        self._model.eval()
        found = []
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            for some in inputs.split(4096):
                latent = self._model(some)
                found.append(latent.mean / torch.sqrt(1.0 + latent.variance))
        return np.clip(ndtr(torch.cat(found).double().numpy()), 1e-7, 1.0 - 1e-7)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes."""
        import torch

        p = self._probabilities(torch.tensor(self._scaler.transform(X), dtype=torch.float32))
        return np.column_stack([1.0 - p, p])


def process(points: Any, mean: Any, shape: Any, length: float) -> Any:
    """A process of this mean and kernel; inducing inputs begin at points and are free."""
    import gpytorch
    from gpytorch import variational

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            distribution = variational.CholeskyVariationalDistribution(len(points))
            super().__init__(variational.VariationalStrategy(self, points, distribution))
            shape.lengthscale = length
            self.mean_module, self.covar_module = mean, gpytorch.kernels.ScaleKernel(shape)

        def forward(self, x: Any) -> Any:
            mean, covariance = self.mean_module(x), self.covar_module(x)
            return gpytorch.distributions.MultivariateNormal(mean, covariance)

    return Model()
