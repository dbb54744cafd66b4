#!/bin/sh
# Makes .venv from the pinned versions in requirements.lock and finds Java. Safe to run again; safe to interrupt.
# PYTHON names another interpreter; HOLDFAST_NO_INSTALL=1 forbids the use of the system's package manager.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'set-up: %s\n' "$*" >&2; }

if [ "$(uname -s)" != Linux ]; then
    say "Holdfast runs on Linux only: its locks and its compaction use calls that $(uname -s) lacks."
    say "Next: run the same command in a Linux container, or, on Windows, in WSL 2."
    exit 1
fi

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

python=""
for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
    [ -n "$candidate" ] || continue
    if new_enough "$candidate"; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
    say "Python 3.11 or newer is needed and none was found."
    say "Next: install it (Debian, Ubuntu: apt-get install python3 python3-venv),"
    say "      or name one: make test PYTHON=/path/to/python3.11"
    exit 1
fi

if ! { [ -x .venv/bin/python ] && new_enough .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1; }; then
    say "making .venv with $("$python" --version)"
    if ! "$python" -m venv --clear .venv; then
        say "this Python cannot make virtual environments."
        say "Next: install its venv package (Debian, Ubuntu: apt-get install python3-venv), then run the same command again."
        exit 1
    fi
fi

say "installing pinned packages (Spark is large: a minute or two the first time)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .

java_home=$(sh tools/find-java.sh)
printf '%s\n' "$java_home" > .venv/java-home
say "Java: $java_home"
touch .venv/ready
