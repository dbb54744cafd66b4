#!/bin/sh
# Creates an environment with pinned packages, and finds Java. It can be interrupted and run again.
# Usage: setup.sh [FOLDER [LOCK]]; without arguments, .venv with the versions of requirements.lock.
# Set PYTHON to use another interpreter. Set HOLDFAST_NO_INSTALL=1 to forbid installing system packages.
set -eu
cd "$(dirname "$0")/.."
env=${1:-.venv}
lock=${2:-requirements.lock}

say() { printf 'set-up: %s\n' "$*" >&2; }

if [ "$(uname -s)" != Linux ]; then
    say "Holdfast runs on Linux only: its locks and its compaction use system calls that $(uname -s) does not have."
    say "Next: run the same command in a Linux container, or, on Windows, in WSL 2."
    exit 1
fi

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

python=""
for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3.14 python3; do
    [ -n "$candidate" ] || continue
    if new_enough "$candidate"; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
    say "Python 3.11 or newer is required, but was not found."
    say "Next: install it (Debian, Ubuntu: apt-get install python3 python3-venv),"
    say "      or choose one: make test PYTHON=/path/to/python3.11"
    exit 1
fi

if ! { [ -x "$env/bin/python" ] && new_enough "$env/bin/python" && "$env/bin/python" -m pip --version >/dev/null 2>&1; }; then
    say "creating $env with $("$python" --version)"
    if ! "$python" -m venv --clear "$env"; then
        say "this Python cannot create virtual environments."
        say "Next: install its venv package (Debian, Ubuntu: apt-get install python3-venv), then run the same command again."
        exit 1
    fi
fi

say "installing pinned packages (the first time takes a minute or two, because Spark is large)"
"$env/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock"
"$env/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .

java_home=$(sh tools/find-java.sh)
printf '%s\n' "$java_home" > "$env/java-home"
say "Java: $java_home"
touch "$env/ready"
