#!/bin/sh
# Prints the path of PostgreSQL's JDBC driver, which only the benchmarks need. If there is none, unpacks the system's
# package into .venv/jdbc, or installs it if that needs no password; otherwise prints the command to type.
# Set HOLDFAST_NO_INSTALL=1 to forbid both. Set HOLDFAST_JAR_DIRS to search other folders for the jar.
set -eu

own="$(cd "$(dirname "$0")/.." && pwd)/.venv/jdbc"

say() { printf 'find-jdbc: %s\n' "$*" >&2; }

look() {
    for dir in ${HOLDFAST_JAR_DIRS:-/usr/share/java /usr/share/java/postgresql-jdbc} "$own/usr/share/java"; do
        for jar in "$dir"/postgresql.jar "$dir"/postgresql-jdbc.jar "$dir"/postgresql-4*.jar; do
            if [ -f "$jar" ]; then printf '%s\n' "$jar"; return 0; fi
        done
    done
    return 1
}

# Prints the command that installs the driver here, or nothing if it is unknown.
install_command() {
    if command -v apt-get >/dev/null 2>&1; then echo "apt-get install -y libpostgresql-jdbc-java"
    elif command -v dnf >/dev/null 2>&1; then echo "dnf install -y postgresql-jdbc"
    fi
}

# Needs no special rights and does not change the system, provided that apt has its package lists.
unpack() {
    command -v dpkg-deb >/dev/null 2>&1 || return 1
    rm -rf "$own"
    mkdir -p "$own"
    say "no JDBC driver found; running: apt-get download libpostgresql-jdbc-java"
    (cd "$own" && apt-get download -qq libpostgresql-jdbc-java >&2 && dpkg-deb -x ./*.deb . && rm -f ./*.deb)
}

# Prints the prefix that gives the rights to install: empty for root, or sudo if it needs no password.
rights() {
    if [ "$(id -u)" = 0 ]; then return 0; fi
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then echo "sudo -n"; return 0; fi
    return 1
}

if look; then exit 0; fi

command=$(install_command)
if [ -n "$command" ] && [ -z "${HOLDFAST_NO_INSTALL:-}" ]; then
    case "$command" in apt-get*) if unpack && look; then exit 0; fi ;; esac
    if as=$(rights); then
        say "running: ${as:+$as }$command"
        case "$command" in apt-get*) $as apt-get update -qq >&2 || true ;; esac
        # shellcheck disable=SC2086
        if $as $command >&2 && look; then exit 0; fi
    fi
    say "the installation did not provide the driver."
fi

say "PostgreSQL's JDBC driver is required to measure Spark's own writer, but was not found."
if [ -n "$command" ]; then
    say "Next: sudo $command"
else
    say "Next: put postgresql.jar, the JDBC driver, into a folder."
fi
say "      Or, if the jar is elsewhere: export HOLDFAST_JAR_DIRS=/path/to/its/folder. Then run the same command again."
exit 1
