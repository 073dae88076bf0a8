"""Sparse power EP and QP by inducing points: N rows in O(N M^2), in chunks of any storage.

The method is that of Bui, Yan & Turner (2017), with the projection of f itself, so that every table
and rule of `qpruntime.projection` applies. Z has M inducing inputs, k(Z, Z) = L L^T, phi_n = L^-1
k(Z, x_n), r_n = k(x_n, x_n) - |phi_n|^2. A row has one site (tau, nu) of f_n about its prior mean,
even if it observes a multiple of f_n. The posterior precision of w ~ N(0, I) is B = I + sum T_n
phi_n phi_n^T, T = tau/(1 + power r tau). Power 1 is FITC, which is the dense engine on FITC's
covariance, and powers near 0 approach the variational bound.

The modules, from the ground up; each imports from those above it. k(X, Z) and its slopes are in
`qpruntime.kernels.cross_covariance`.

`rows`
    The few products and triangular solves, in place, without the interpreter lock.
`rows`
    `Rows`: where X, y, weights, prior means and scales are read from, in chunks of 32 768 rows;
    `Held` holds arrays of this process. ``rows.n``, ``rows.chunks``, ``rows.read(number) ->
    Chunk(X, y, weights, prior, scale)``, y encoded; the last three may be None.
`rows`
    ``rows_of(X, y, weights, prior, scale=None) -> Rows`` of inputs that
    `qpruntime.dataframes.lazy_rows` has checked: arrays in memory, zarr, dask arrays and frames.
`rows`
    `Inducing(kernel, Z, jitter=1e-8, dtype)`: L with what jitter it took (relative to the mean of
    the diagonal, times 10 until it factors); ``features(X) -> Phi (n, M), r (n,)``.
`state`
    `Rule(projector, power)`: cavities (mean, std), y and weights to (log Z, mean, std, inside) of
    likelihoods to power * weight. The one place that knows of tables of powers.
`state`
    `State`: an `Inducing`, a `Rule`, and the posterior of w: all that a chunk needs.
`turn`
    Cavities, new sites and evidence of some rows, vectorised.
`passes`
    A pass over one chunk: gather (B and h), sweep, means, terms (of the evidence), slopes. Pure
    functions of a state, a chunk and its sites.
`state`
    Sums over chunks by a binary tree over their numbers: the same bits whoever computes.
`engine`
    ``Engine(rows, rule, kernel, Z, jitter, dtype, executor, memory)``: sites of all rows and the
    passes over them. ``move(kernel, Z)`` keeps the sites and gathers anew; ``seed(state)`` lets
    rows without sites take the posterior of other rows as their cavity; ``sweep(share)``;
    ``evaluate(sweeps=1, parameters=()) -> Evaluation(value, by_theta, by_Z, by_mean,
    by_parameters)``; ``sites``, which may be set; ``rule``, which may be set too: learn with EP's,
    end with QP's.
`iterate`
    ``settle(engine, limits, after=None) -> Ended``: sweeps to the fixed point.
`iterate`
    ``settle_tied(engine, limits) -> Ended``: the same by one site that all rows share.
`keeper`
    Features of all rows, kept from pass to pass if they fit ``memory=`` of the engine.
`passes`
    The pass of the gradient, and what follows from its sums.
`checkpoint`
    Sites on the disk: ``Checkpoint(path).offer(engine)`` after a sweep, ``restore(engine)``.
`some`
    Some rows of an engine, by their numbers: their leave-one-out densities.
`posterior`
    `SparsePosterior`: predictions, without rows; leave-one-out densities and sites while the rows
    are at hand.
`infer`
    `infer_sparse`, the function for users.
"""
