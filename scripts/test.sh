#!/bin/sh
# Every check and test. Makes the environment if it is missing. --all adds the slow suites;
# other arguments go to pytest.
set -eu
cd "$(dirname "$0")/.."
extras=test
. scripts/env.sh

# The matrices are small: a second BLAS thread costs more than it does.
export OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}"

select="not slow"
if [ "${1:-}" = "--all" ]; then
  select="slow or not slow"
  shift
fi

echo "== ruff"
"$PY" -m ruff check .
"$PY" -m ruff format --check .
echo "== mypy"
"$PY" -m mypy
echo "== shell scripts"
for script in scripts/*.sh .ci/run; do sh -n "$script"; done
# Beside the tests, where there is a second core.
coverage="$(mktemp)"
{
  NUMBA_DISABLE_JIT=1 "$PY" -m pytest -q -m "interpreted and not slow" -p no:cacheprovider \
    --cov=qpruntime --cov-report= --cov-config=pyproject.toml tests &&
  "$PY" -m coverage report --fail-under=95 \
    --omit='*/contract.py,*/claims.py,*/user_function.py,*/own_density.py,*/observations.py,*/absent.py,*/__init__.py' \
    --include='qpruntime/special.py,qpruntime/likelihoods/*,qpruntime/projection/splines.py,qpruntime/quadrature/sigma_star.py,qpruntime/projection/kernel.py,qpruntime/inference/sequential.py'
} > "$coverage" 2>&1 &
beside=$!
trap 'pkill -P "$beside" 2>/dev/null || true; rm -f "$coverage"' EXIT
echo "== tests and documentation examples"
"$PY" -m pytest -q -m "$select" --durations=10 "$@" tests qpruntime tablegen
echo "== kernels with the jit off: line coverage"
covered=0
wait "$beside" || covered=$?
cat "$coverage"
exit "$covered"
