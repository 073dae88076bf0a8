"""GPyTorch's deep Gaussian process, by its own classes; for interpreters that have it."""

import time
from typing import Any, NamedTuple

import numpy as np

from scripts.benchmarks.data.registry import Array, Split
from scripts.benchmarks.metrics import normal_log_density


class Size(NamedTuple):
    """Inducing inputs of a layer, rows of a batch, hidden units, samples of a step."""

    inducing: int
    batch: int
    hidden: int
    samples: int


def fitted(data: Split, steps: int, size: Size, begun: float) -> tuple[Array, Array, float]:
    """Log densities and means of the test rows, and CPU seconds of the fit since `begun`."""
    import torch
    from gpytorch import kernels, likelihoods, means, mlls
    from gpytorch.distributions import MultivariateNormal
    from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
    from gpytorch.settings import num_likelihood_samples
    from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

    torch.manual_seed(0)
    torch.set_num_threads(1)

    class Layer(DeepGPLayer):
        def __init__(self, inputs: int, outputs: int | None, linear: bool) -> None:
            shape = torch.Size([] if outputs is None else [outputs])
            Z = torch.randn(*shape, size.inducing, inputs)
            q = CholeskyVariationalDistribution(size.inducing, batch_shape=shape)
            strategy = VariationalStrategy(self, Z, q, learn_inducing_locations=True)
            super().__init__(strategy, inputs, outputs)
            self.mean_module = means.LinearMean(inputs) if linear else means.ConstantMean()
            rbf = kernels.RBFKernel(batch_shape=shape, ard_num_dims=inputs)
            self.covar_module = kernels.ScaleKernel(rbf, batch_shape=shape)

        def forward(self, x: Any) -> Any:
            return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    class Model(DeepGP):
        def __init__(self, inputs: int) -> None:
            super().__init__()
            self.first = Layer(inputs, size.hidden, linear=True)
            self.last = Layer(size.hidden, None, linear=False)
            self.likelihood = likelihoods.GaussianLikelihood()

        def forward(self, x: Any) -> Any:
            return self.last(self.first(x))

    X, y, new, target = data
    centre, scale = X.mean(axis=0), X.std(axis=0)
    middle, unit = y.mean(), y.std()
    a = torch.tensor((X - centre) / scale, dtype=torch.float32)
    b = torch.tensor((y - middle) / unit, dtype=torch.float32)
    model = Model(X.shape[1])
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    bound = mlls.DeepApproximateMLL(mlls.VariationalELBO(model.likelihood, model, len(y)))
    order = np.random.default_rng(0)
    with num_likelihood_samples(size.samples):
        for _ in range(steps):
            some = torch.as_tensor(order.choice(len(y), min(size.batch, len(y)), replace=False))
            optimiser.zero_grad()
            loss = -bound(model(a[some]), b[some])
            loss.backward()
            optimiser.step()
    cpu = time.process_time() - begun
    model.eval()
    c = torch.tensor((new - centre) / scale, dtype=torch.float32)
    with torch.no_grad(), num_likelihood_samples(100):
        seen = model.likelihood(model(c))
        mean, std = seen.mean.double().numpy(), seen.variance.sqrt().double().numpy()
    each = normal_log_density(mean, std, (target - middle) / unit) - np.log(unit)
    highest = each.max(axis=0)
    density = highest + np.log(np.exp(each - highest).mean(axis=0))
    return density, middle + unit * mean.mean(axis=0), cpu
