#!/bin/sh
# Builds the source distribution and the wheel into dist/, and checks them: metadata, the changelog's
# section, and both installed into empty environments on the oldest and the newest Python there is.
# Nothing is uploaded. --tag demands that the commit has the tag of the version.
set -eu
cd "$(dirname "$0")/.."
extras=test
. scripts/env.sh

version="$("$PY" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')"
grep -q "^## $version" CHANGELOG.md || {
  echo "error: CHANGELOG.md has no section '## $version': write what is new for users" >&2
  exit 1
}
if [ "${1:-}" = "--tag" ]; then
  [ "$(git describe --exact-match --tags 2>/dev/null)" = "v$version" ] || {
    echo "error: this commit has no tag v$version: git tag v$version, or without --tag" >&2
    exit 1
  }
  if grep -q "^## $version (unreleased)" CHANGELOG.md; then
    echo "error: CHANGELOG.md calls $version unreleased: write its date" >&2
    exit 1
  fi
  [ -z "$(git status --porcelain)" ] || {
    echo "error: there are changes that are not committed" >&2
    exit 1
  }
fi

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
"$PY" -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet --disable-pip-version-check build twine
rm -rf dist
"$work/tools/bin/python" -m build --outdir dist . > "$work/log" 2>&1 || {
  cat "$work/log" >&2
  exit 1
}
"$work/tools/bin/python" -m twine check --strict dist/*

# The first and the last of the versions that are supported and there.
found=
for name in ${PYTHONS:-3.11 3.12 3.13 3.14}; do
  for candidate in "python$name" "$name"; do
    if "$candidate" -c 'import venv' 2>/dev/null; then
      found="$found $(command -v "$candidate")"
      break
    fi
  done
done
[ -n "$found" ] || found=" $("$PY" -c 'import sys; print(sys._base_executable)')"
first=${found# }
first=${first%% *}
last=${found##* }

for base in $(printf '%s\n' "$first" "$last" | sort -u); do
  for made in dist/*.whl dist/*.tar.gz; do
    rm -rf "$work/empty"
    "$base" -m venv "$work/empty"
    "$work/empty/bin/python" -m pip install --quiet --disable-pip-version-check "$made"
    "$work/empty/bin/python" -m pip check --disable-pip-version-check
    (cd "$work" && empty/bin/python - "$version" << 'END'
import sys

import numpy as np

import qpruntime

assert qpruntime.__version__ == sys.argv[1], qpruntime.__version__
mean, std = qpruntime.project("probit", mu=-3.0, sigma=10.0, y=1)
assert abs(mean - 6.9218006) < 1e-6 and abs(std - 5.36854482) < 1e-6, (mean, std)
X = np.linspace(-3.0, 3.0, 30)[:, None]
model = qpruntime.GPClassifier().fit(X, X[:, 0] > 0.0)
assert model.predict([[2.0]])[0]
END
    )
    (cd "$work" && empty/bin/python -m qpruntime > about && empty/bin/tablegen list > /dev/null)
    echo "$("$base" --version): $(basename "$made") installs and answers"
  done
done
