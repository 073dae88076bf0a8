"""
A dask cluster builds the same table, byte for byte
===================================================

A table of sigma* is made of chunks that do not depend on each other. Any dask cluster can compute
them, and the calling process writes the file. It carries a certificate: its error at nodes and
between them, by a second rule of quadrature.

The cluster here has two workers on this machine. Another cluster needs another address only, and
``tablegen build --scheduler tcp://host:8786`` does the same from a shell.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from dask.distributed import LocalCluster

import tablegen
from qpruntime import open_table
from qpruntime.plotting import RatioDisplay

grid = {
    "mu_range": (-8.0, 8.0),
    "mu_step": 0.05,
    "log10_sigma_range": (-1.0, 2.0),
    "log10_sigma_step": 0.01,
}
folder = Path(tempfile.mkdtemp())

# %%
# Build twice and compare
# -----------------------
# Both files are compared byte by byte. The errors are those of the certificate: at nodes, and amid
# cells, where bilinear interpolation is worst.

options = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "protocol": "tcp://"}
with LocalCluster(dashboard_address=":0", host="127.0.0.1", **options) as cluster:
    done = tablegen.build(
        "probit", folder / "cluster.h5", scheduler=cluster.scheduler_address, **grid
    )
local = tablegen.build("probit", folder / "local.h5", workers=1, **grid)
errors = {part: done.certificate[part]["max_relative_error"] for part in ("nodes", "cells")}
print(f"shape {done.shape}, largest error at nodes {errors['nodes']:.1e}", end=" ")
print(f"and amid cells {errors['cells']:.1e}")
print("the same bytes:", (folder / "cluster.h5").read_bytes() == (folder / "local.h5").read_bytes())

# %%
# A look at it
# ------------
# The ratio of QP's standard deviation to EP's, by lookups of the file that was built.

table = open_table(folder / "cluster.h5")
display = RatioDisplay.from_table(table, 1)
sigma_star, inside = table.lookup([-3.0, 0.0, 20.0], [10.0, 1.0, 10.0], 1)
print("sigma*:", sigma_star.round(6), "inside the grid:", inside)

# %%
# A cavity outside gets EP's standard deviation, as in the paper. A compact table, which is shipped
# for this likelihood, has no outside: a grid is for comparing with the paper, and for likelihoods
# without coordinates of their own.

plt.show()
