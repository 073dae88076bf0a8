#!/bin/sh
# Every check and test. Makes the environment if it is missing. --all adds the slow suites;
# other arguments go to pytest.
set -eu
cd "$(dirname "$0")/.."
extras=test
. scripts/env.sh
# One thread for each lane: with more, those of one lane wait for the core that the other has.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

select="not slow"
if [ "${1:-}" = "--all" ]; then
  select="slow or not slow"
  shift
fi
given=$#

# Two lanes, one for each of two cores: this one prints as it goes, `beside` is shown at the end.
# Both keep compiled kernels in the same files, and what one lane has compiled the other reads. So
# this one begins with rules of quadrature and tables, and comes to inference when the other,
# which begins with what compiles inference, is through.
kernels="tests/likelihoods tests/quadrature tests/projection tests/execution tests/tablegen"
models="tests/inference tests/learning"
others="qpruntime tests/estimators tests/test_docs.py tests/test_memory.py tests/test_inputs.py"
# And all that is in none of them.
for path in tablegen tests/test_*.py tests/[a-z]*/; do
  path=${path%/}
  case " $kernels $models $others tests/tools tests/reference " in
    *" $path "*) ;;
    *) others="$others $path" ;;
  esac
done

output="$(mktemp)"
failures="$(mktemp)"

# part WORDS COMMAND...: run it, go on if it fails, and write down that it did.
part() {
  title=$1
  shift
  printf '\n== %s\n' "$title"
  "$@" || {
    status=$?
    # A selection by the caller (-k, -m) may leave a part without tests.
    [ "$status" -eq 5 ] && [ "$given" -gt 0 ] || echo "$title" >> "$failures"
  }
}

# run_tests PATHS ARGUMENTS...
run_tests() {
  paths=$1
  shift
  # shellcheck disable=SC2086 # paths are several words
  "$PY" -m pytest -q -m "$select" --durations=5 "$@" $paths
}

check_shell() {
  for script in scripts/*.sh .ci/run; do sh -n "$script" || return 1; done
}

lint() {
  "$PY" -m ruff check . && "$PY" -m ruff format --check .
}

interpreted() {
  # The files that have such tests: the others take seconds to import.
  files="$(grep -rl --include='test_*.py' 'mark\.interpreted' tests)"
  # shellcheck disable=SC2086 # paths are several words
  NUMBA_DISABLE_JIT=1 "$PY" -m pytest -q -m "interpreted and not slow" -p no:cacheprovider \
    --cov=qpruntime --cov-report= --cov-config=pyproject.toml \
    $files &&
  "$PY" -m coverage report --fail-under=95 \
    --omit='qpruntime/likelihoods/base.py,qpruntime/likelihoods/user_defined.py,qpruntime/likelihoods/responses.py,*/__init__.py' \
    --include='qpruntime/_special.py,qpruntime/likelihoods/*,qpruntime/projection/interpolation.py,qpruntime/projection/site_kernel.py,qpruntime/quadrature/sigma_star_kernels.py,qpruntime/quadrature/panel_kernels.py,qpruntime/quadrature/adaptive_kernels.py,qpruntime/inference/site_kernels.py,qpruntime/inference/dense/cholesky_kernels.py'
}

beside() {
  part "ruff" lint
  part "shell scripts" check_shell
  part "mypy" "$PY" -m mypy
  # While the other lane compiles the kernels that all of the rest uses.
  part "kernels with the jit off: line coverage" interpreted
  part "estimators, tables as files, scripts, documentation and its examples" run_tests "$others" "$@"
}

{ beside "$@"; } > "$output" 2>&1 &
lane=$!
trap 'pkill -P "$lane" 2>/dev/null || true; rm -f "$output" "$failures"' EXIT
part "likelihoods, quadrature, projection, tablegen, inference, learning" \
  run_tests "$kernels $models" "$@"
wait "$lane" || echo "the second lane" >> "$failures"
cat "$output"
if [ -s "$failures" ]; then
  printf '\nfailed:\n' >&2
  cat "$failures" >&2
  exit 1
fi
