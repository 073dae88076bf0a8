#!/bin/sh
# The main job, end to end: install, classify the Wine data with EP and QP by the table that ships
# with the package, then build the paper's grid and classify by that.
# Safe to run twice: what is there and valid is kept.
set -eu
cd "$(dirname "$0")/.."
extras=build,plot
. scripts/env.sh

echo "1. The shipped table"
"$PY" -m scripts.examples wine

printf '\n2. The grid of the paper, built and certified\n'
table=tables/probit.h5
if ! "$PY" -m tablegen info "$table" >/dev/null 2>&1; then
  "$PY" -m tablegen build --likelihood probit --output "$table" --force | grep '^error'
fi
"$PY" -m scripts.examples wine --table "$table" --figure tables/wine-variances.png
