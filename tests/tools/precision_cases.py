"""Problems on sparse precisions, with values that another implementation has for them."""

import json
from pathlib import Path

import numpy as np
from scipy import sparse

REFERENCE = json.loads(Path(__file__).with_name("precision_reference.json").read_text())
N = np.arange(40)
X = np.sin(1.7 * N)
FIXED = np.column_stack([np.ones(40), X])
GROUP, OTHER = N // 4, 7 * N % 10
LABELS = np.sign(1.5 * np.sin(3.1 * GROUP + 1.0) + 0.8 * X + 0.9 * np.cos(2.3 * N) + 0.2)
COUNTS = np.round(np.exp(0.8 * np.sin(0.3 * N) + 0.3 * X))


def levels(codes, count):
    """Rows that see one level each."""
    shape = (codes.size, count)
    return sparse.csr_array((np.ones(codes.size), (np.arange(codes.size), codes)), shape=shape)


def joined(*blocks):
    """A and Q of blocks (rows, precision), after two fixed effects of deviation 10."""
    A = sparse.hstack([FIXED, *(a for a, _ in blocks)], format="csr")
    Q = sparse.block_diag([sparse.eye_array(2) / 100.0, *(q for _, q in blocks)], format="csr")
    return A, Q


def group(codes, theta):
    return levels(codes, 10), sparse.eye_array(10) * np.exp(-2.0 * theta)


def ar1(theta):
    """20 states of deviation exp(theta[0]) and correlation tanh(theta[1])."""
    rho = np.tanh(theta[1])
    middle = np.full(20, 1.0 + rho**2)
    middle[[0, -1]] = 1.0
    off = np.full(19, -rho)
    Q = sparse.diags_array([off, middle, off], offsets=[-1, 0, 1])
    return Q * np.exp(-2.0 * theta[0]) / (1.0 - rho**2)


def walk(theta):
    """First differences, scaled to variances of geometric mean 1 about their mean."""
    D = np.diff(np.eye(20), axis=0)
    R = D.T @ D
    R *= np.exp(np.mean(np.log(np.linalg.pinv(R).diagonal())))
    return sparse.csr_array(R * np.exp(-2.0 * theta[0]) + 1e-9 * R.diagonal().mean() * np.eye(20))


def slopes(theta):
    """An intercept and a slope for each group, of correlated effects."""
    sd, rho = np.exp(theta[:2]), np.tanh(theta[2])
    S = np.outer(sd, sd) * np.array([[1.0, rho], [rho, 1.0]])
    own = np.zeros((40, 20))
    own[N, 2 * GROUP], own[N, 2 * GROUP + 1] = 1.0, X
    return joined((sparse.csr_array(own), sparse.kron(sparse.eye_array(10), np.linalg.inv(S))))


def plane(theta):
    """Linear triangles on a grid of 17 x 17 nodes over [-.3, 1.3]^2, lumped masses."""
    m, h = 17, 0.1
    node = np.arange(m * m).reshape(m, m)
    C, G = np.zeros(m * m), np.zeros((m * m, m * m))
    low, right, up, far = node[:-1, :-1], node[:-1, 1:], node[1:, :-1], node[1:, 1:]
    # The right angle is the second corner: of these triangles the stiffness is that of no size.
    local = 0.5 * np.array([[1.0, -1.0, 0.0], [-1.0, 2.0, -1.0], [0.0, -1.0, 1.0]])
    for corners in ((low, right, far), (low, up, far)):
        for a in range(3):
            np.add.at(C, corners[a], h * h / 6.0)
            for b in range(3):
                np.add.at(G, (corners[a], corners[b]), local[a, b])
    kappa2 = 8.0 * np.exp(-2.0 * theta[1])
    K = kappa2 * np.diag(C) + G
    Q = K @ np.diag(1.0 / C) @ K / (4.0 * np.pi * kappa2) * np.exp(-2.0 * theta[0])
    u, v = ((np.array([0.37 * N % 1.0, (0.61 * N + 0.1) % 1.0])) + 0.3) / h
    i, j = u.astype(int), v.astype(int)
    u, v = u - i, v - j
    rows = np.zeros((40, m * m))
    rows[N, node[j, i]] = 1.0 - np.maximum(u, v)
    rows[N, node[j + 1, i + 1]] = np.minimum(u, v)
    rows[N, np.where(u > v, node[j, i + 1], node[j + 1, i])] = np.abs(u - v)
    return joined((sparse.csr_array(rows), sparse.csr_array(Q)))


def problem(name):
    """A, Q as a function of theta, observations, likelihood and offset."""
    if name.startswith("groups"):
        return lambda t: joined(group(GROUP, t[0])), LABELS, name.split()[1], 0.0
    if name.startswith("crossed"):
        two = lambda t: joined(group(GROUP, t[0]), group(OTHER, t[1]))  # noqa: E731
        return two, LABELS, "logistic", 0.0
    if name.startswith("intercept"):
        return slopes, LABELS, "probit", 0.0
    if name.startswith("spde"):
        return plane, COUNTS, "poisson-exp", 0.0
    block = walk if name.startswith("rw1") else ar1
    return lambda t: joined((levels(N // 2, 20), block(t))), COUNTS, "poisson-exp", 0.1


def constraint(name):
    """The sum of a random walk."""
    return np.r_[0.0, 0.0, np.ones(20)] if name.startswith("rw1") else None


def dense(name):
    """Rows and prior covariance of x, at the parameters of the reference."""
    build, *_ = problem(name)
    A, Q = build(np.array(REFERENCE[name]["theta"]))
    S, C = np.linalg.inv(Q.toarray()), constraint(name)
    return A.toarray(), S if C is None else S - np.outer(S @ C, S @ C) / (C @ S @ C)


CASES = [
    *("groups probit", "groups logistic", "crossed logistic", "intercept and slope"),
    *("ar1 poisson", "rw1 poisson", "spde poisson"),
]
#: With a precision of 1e-9 along a constant a few digits are lost, there as here.
LOST = {"rw1 poisson": 1e4}
