"""GPyTorch's stochastic variational Gaussian processes under a softmax, as its tutorials have them.

Scaled features, a Matérn 5/2 of each class with one length-scale a feature, inducing points that
begin at rows, batches of 1024, Adam with a rate that falls; it ends where a tenth of the rows says.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from sklearn.preprocessing import StandardScaler

__all__ = ["SoftmaxSVGP"]

_BATCH, _PATIENCE, _RATE, _DRAWS = 1024, 3, 0.02, 64


class SoftmaxSVGP:
    """One function of each class, in single precision; probabilities are means over draws.

    Parameters
    ----------
    points, epochs : int
    seed : int
        Of rows held out, batches and inducing points.
    """

    def __init__(self, points: int = 100, epochs: int = 40, seed: int = 0) -> None:
        self.points, self.epochs, self.seed = points, epochs, seed

    def fit(self, X: Any, y: Any) -> SoftmaxSVGP:
        """Maximise the bound over batches; keep the epoch whose held-out loss is least."""
        import gpytorch
        import torch

        torch.manual_seed(self.seed)
        rng = np.random.default_rng(self.seed)
        self._scaler = StandardScaler().fit(X)
        inputs = torch.tensor(self._scaler.transform(X), dtype=torch.float32)
        self.classes_, codes = np.unique(y, return_inverse=True)
        labels = torch.tensor(codes)
        order = rng.permutation(len(labels))
        judged, rest = order[: len(order) // 10], order[len(order) // 10 :]
        C = self.classes_.size
        self._model = _model(inputs[rest[: self.points]], C)
        self._softmax = gpytorch.likelihoods.SoftmaxLikelihood(
            num_classes=C, num_features=C, mixing_weights=False
        )
        bound = gpytorch.mlls.VariationalELBO(self._softmax, self._model, num_data=len(rest))
        steps = torch.optim.Adam(self._model.parameters(), lr=_RATE)
        falls = torch.optim.lr_scheduler.MultiStepLR(steps, [int(0.75 * self.epochs)], 0.1)
        least, kept, since = np.inf, None, 0
        for _ in range(self.epochs):
            self._model.train()
            for some in np.array_split(rng.permutation(rest), max(1, len(rest) // _BATCH)):
                steps.zero_grad()
                loss = -bound(self._model(inputs[some]), labels[some])
                loss.backward()
                steps.step()
            falls.step()
            p = self._probabilities(inputs[judged])
            loss = float(-np.mean(np.log(p[np.arange(len(judged)), codes[judged]])))
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
        with torch.no_grad(), gpytorch.settings.num_likelihood_samples(_DRAWS):
            for some in inputs.split(4096):
                found.append(self._softmax(self._model(some)).probs.mean(dim=0))
        p = np.clip(torch.cat(found).double().numpy(), 1e-7, 1.0)
        return p / p.sum(axis=1, keepdims=True)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes."""
        import torch

        return self._probabilities(torch.tensor(self._scaler.transform(X), dtype=torch.float32))


def _model(points: Any, classes: int) -> Any:
    import gpytorch
    import torch
    from gpytorch import variational

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            shape = torch.Size([classes])
            distribution = variational.CholeskyVariationalDistribution(
                len(points), batch_shape=shape
            )
            each = points.repeat(classes, 1, 1)
            own = variational.VariationalStrategy(self, each, distribution)
            strategy = variational.IndependentMultitaskVariationalStrategy(own, num_tasks=classes)
            super().__init__(strategy)
            self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
            kernel = gpytorch.kernels.MaternKernel(
                nu=2.5, ard_num_dims=points.shape[1], batch_shape=shape
            )
            kernel.lengthscale = float(np.sqrt(points.shape[1]))
            self.covar_module = gpytorch.kernels.ScaleKernel(kernel, batch_shape=shape)

        def forward(self, x: Any) -> Any:
            mean, covariance = self.mean_module(x), self.covar_module(x)
            return gpytorch.distributions.MultivariateNormal(mean, covariance)

    return Model()
