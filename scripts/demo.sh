#!/bin/sh
# The main job, end to end: install, build the probit table, classify the Wine data with EP and QP.
# Safe to run twice: what is there and valid is kept.
set -eu
cd "$(dirname "$0")/.."
extras=build,plot
. scripts/env.sh

table=tables/probit.h5
if ! "$PY" -m tablegen info "$table" >/dev/null 2>&1; then
  "$PY" -m tablegen build --likelihood probit --output "$table" --force
fi
"$PY" scripts/demo_wine.py --table "$table" --figure tables/wine-variances.png
