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
# They share all files of tests: this one takes rooms from the ground up, the other from the top
# down, and they meet. Both keep compiled kernels in the same files, and what one has compiled the
# other reads. So the other begins with what compiles nothing, while this one compiles what all use.
claims="$(mktemp -d)"
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

run_tests() {
  "$PY" -m pytest -q -m "$select" --durations=5 -p tests.tools.lanes --claims="$claims" "$@" \
    qpruntime tablegen tests
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
    --include='qpruntime/_special.py,qpruntime/likelihoods/*,qpruntime/projection/interpolation.py,qpruntime/projection/site_kernel.py,qpruntime/quadrature/sigma_star_kernels.py,qpruntime/quadrature/panel_kernels.py,qpruntime/quadrature/support_kernels.py,qpruntime/quadrature/adaptive_kernels.py,qpruntime/inference/site_kernels.py,qpruntime/inference/dense/cholesky_kernels.py'
}

beside() {
  part "ruff" lint
  part "shell scripts" check_shell
  part "mypy" "$PY" -m mypy
  part "kernels with the jit off: line coverage" interpreted
  part "tests, from the uppermost room down" run_tests --downwards "$@"
}

{ beside "$@"; } > "$output" 2>&1 &
lane=$!
trap 'pkill -P "$lane" 2>/dev/null || true; rm -rf "$output" "$failures" "$claims"' EXIT
part "tests, from the ground up" run_tests "$@"
wait "$lane" || echo "the second lane" >> "$failures"
cat "$output"
if [ -s "$failures" ]; then
  printf '\nfailed:\n' >&2
  cat "$failures" >&2
  exit 1
fi
