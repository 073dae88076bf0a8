"""GPyTorch's stochastic variational Gaussian processes of classes, as its tutorials have them.

Scaled features, Matérn kernels with one length-scale a feature, inducing points that begin at rows,
batches of 1024, Adam with a rate that falls; it ends where a tenth of the rows says.
"""

import copy
from typing import Any

import numpy as np
from scipy.special import ndtr
from sklearn.preprocessing import StandardScaler

_BATCH = 1024


class _Variational:
    """What both share: single precision, rows held out, batches.

    Parameters
    ----------
    points, epochs : int
    patience : int
        Epochs without gain after which it ends.
    rate : float
    seed : int
        Of rows held out, batches and inducing points.
    """

    def __init__(self, points: int, epochs: int, patience: int, rate: float, seed: int) -> None:
        self._points, self._epochs, self._patience = points, epochs, patience
        self._rate, self._seed = rate, seed

    def fit(self, X: Any, y: Any) -> Any:
        """Maximise the bound over batches; keep the epoch whose held-out loss is least."""
        import gpytorch
        import torch

        torch.manual_seed(self._seed)
        rng = np.random.default_rng(self._seed)
        self._scaler = StandardScaler().fit(X)
        inputs = torch.tensor(self._scaler.transform(X), dtype=torch.float32)
        self.classes_, codes = np.unique(y, return_inverse=True)
        order = rng.permutation(len(codes))
        judged, rest = order[: len(order) // 10], order[len(order) // 10 :]
        self._model, self._likelihood = self._made(inputs[rest[: self._points]])
        labels = self._labels(torch.tensor(codes))
        bound = gpytorch.mlls.VariationalELBO(self._likelihood, self._model, num_data=len(rest))
        steps = torch.optim.Adam(self._model.parameters(), lr=self._rate)
        falls = torch.optim.lr_scheduler.MultiStepLR(steps, [int(0.75 * self._epochs)], 0.1)
        least, kept, since = np.inf, None, 0
        for _ in range(self._epochs):
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
                if since == self._patience:
                    break
        self._model.load_state_dict(kept)
        return self

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes."""
        import torch

        return self._probabilities(torch.tensor(self._scaler.transform(X), dtype=torch.float32))


class SVGP(_Variational):
    """Two classes: probit sites, Matérn 3/2, 600 inducing points."""

    def __init__(self, seed: int) -> None:
        super().__init__(600, 20, 2, 0.01, seed)

    def _made(self, points: Any) -> tuple[Any, Any]:
        import gpytorch

        d = points.shape[1]
        shape = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=d)
        model = process(points, gpytorch.means.ConstantMean(), shape, float(np.sqrt(d)))
        return model, gpytorch.likelihoods.BernoulliLikelihood()

    def _labels(self, codes: Any) -> Any:
        return codes.float()

    def _probabilities(self, inputs: Any) -> Any:
        import gpytorch
        import torch

        self._model.eval()
        found = []
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            for some in inputs.split(4096):
                latent = self._model(some)
                found.append(latent.mean / torch.sqrt(1.0 + latent.variance))
        p = np.clip(ndtr(torch.cat(found).double().numpy()), 1e-7, 1.0 - 1e-7)
        return np.column_stack([1.0 - p, p])


def process(points: Any, mean: Any, shape: Any, length: float, classes: int = 0) -> Any:
    """A process of this mean and kernel, or one a class; inducing inputs begin at points."""
    import gpytorch
    import torch
    from gpytorch import variational as v

    each = torch.Size([classes] if classes else [])

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            distribution = v.CholeskyVariationalDistribution(len(points), batch_shape=each)
            own = points.repeat(classes, 1, 1) if classes else points
            strategy: Any = v.VariationalStrategy(self, own, distribution)
            if classes:
                strategy = v.IndependentMultitaskVariationalStrategy(strategy, num_tasks=classes)
            super().__init__(strategy)
            shape.lengthscale = length
            self.mean_module = mean
            self.covar_module = gpytorch.kernels.ScaleKernel(shape, batch_shape=each)

        def forward(self, x: Any) -> Any:
            mean, covariance = self.mean_module(x), self.covar_module(x)
            return gpytorch.distributions.MultivariateNormal(mean, covariance)

    return Model()
