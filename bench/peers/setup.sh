#!/bin/sh
# Creates .venv-peers with the pinned versions of bench/peers/requirements.lock. It can be interrupted and run again.
# Set PEERS_PYTHON to use another interpreter.
set -eu
cd "$(dirname "$0")/../.."

say() { printf 'set-up: %s\n' "$*" >&2; }

# The packages that Flink needs exist for these versions of Python only.
fits() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; }

python=""
for candidate in "${PEERS_PYTHON:-}" .venv/bin/python python3.11 python3.12 python3.10; do
    [ -n "$candidate" ] || continue
    if fits "$candidate"; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
    say "Flink needs Python 3.10, 3.11 or 3.12, but none was found."
    say "Next: install one, or choose one: make bench-peers PEERS_PYTHON=/path/to/python3.11"
    exit 1
fi

say "creating .venv-peers with $("$python" --version)"
"$python" -m venv --clear .venv-peers
say "installing Flink and what it needs (it is large: several minutes)"
.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r bench/peers/requirements.lock
touch .venv-peers/ready
