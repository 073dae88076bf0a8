#!/bin/sh
# Builds the documentation into docs/_build/html, offline once the environment is there; a warning is
# an error. Makes the environment if it is missing.
# --quick runs one example of the gallery; the other examples and the pages show code only.
set -eu
cd "$(dirname "$0")/.."
extras=docs
. scripts/env.sh

if [ "${1:-}" = "--quick" ]; then
  shift
  export QP_DOCS_QUICK=1
fi
rm -rf docs/_build docs/auto_gallery docs/auto_pages docs/api/generated
OMP_NUM_THREADS=1 "$PY" -m sphinx -b html -n -W --keep-going -q "$@" docs docs/_build/html
echo "docs/_build/html/index.html"
