# Sourced by the other scripts: makes .venv at the top of the checkout and installs the project.
# Usage: cd to the top, set $extras, then `. scripts/env.sh`. Leaves $PY, the interpreter of .venv.

find_python() {
  for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11 python; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
}

if [ ! -x .venv/bin/python ]; then
  base=$(find_python)
  if [ -z "$base" ]; then
    echo "error: needs Python 3.11 or newer; install it, or name it: PYTHON=/path/to/python3 sh $0" >&2
    exit 1
  fi
  echo "Creating .venv with $("$base" --version) ..." >&2
  if ! "$base" -m venv .venv; then
    rm -rf .venv
    echo "error: 'python -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2
    exit 1
  fi
fi
PY=.venv/bin/python
# Images of containers often set it. Then every process compiles all modules that it imports: 2000
# of them, three times as long as the import takes without.
unset PYTHONDONTWRITEBYTECODE

# The stamp holds what was installed: another pyproject.toml or place installs again.
stamp=".venv/installed-$extras"
want="$(pwd) $(cksum < pyproject.toml)"
# The extra `test` has all of build and plot: the demonstration installs nothing amid the tests.
if [ "$extras" = build,plot ] && [ -f .venv/installed-test ]; then
  stamp=.venv/installed-test
fi
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  echo "Installing the project and its dependencies ($extras) into .venv ..." >&2
  # uv takes seconds for what takes pip a minute. It does not read pip's settings: where these name an
  # index, pip installs, and where uv fails.
  # Bytecode of what is never imported would be a fifth of the environment: neither compiles it.
  quick() {
    if "$PY" -m pip config list 2>/dev/null | grep -q '^[^.]*\.index-url='; then return 1; fi
    "$PY" -m pip install --quiet --disable-pip-version-check --no-compile uv >&2 &&
      "$PY" -m uv pip install --quiet --python "$PY" --editable ".[$extras]" >&2
  }
  quick || "$PY" -m pip install --quiet --disable-pip-version-check --no-compile \
    --editable ".[$extras]" >&2 || {
    echo "error: the installation failed; see the messages above" >&2
    exit 1
  }
  echo "$want" > "$stamp"
fi
