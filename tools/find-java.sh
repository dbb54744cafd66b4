#!/bin/sh
# Prints the home of a Java 17 or newer. Where there is none: installs one with the system's package manager if that
# needs no password, else says exactly what to type. HOLDFAST_NO_INSTALL=1 forbids the installation.
# HOLDFAST_JVM_DIRS names the folders of Java homes to look through, for machines that keep them elsewhere.
set -eu

say() { printf 'set-up: %s\n' "$*" >&2; }

# Java's major version by its home, or nothing. "1.8.0" counts as 1: too old.
major() {
    [ -x "$1/bin/java" ] || return 0
    "$1/bin/java" -version 2>&1 | sed -n 's/.*version "\([0-9][0-9]*\).*/\1/p' | head -n 1
}

good() {
    found=$(major "$1")
    [ -n "$found" ] && [ "$found" -ge 17 ]
}

home_of_command() {
    command -v java >/dev/null 2>&1 || return 0
    # The command may be a link or a shim: Java itself knows its home.
    java -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java\.home = //p' | head -n 1
}

look() {
    for home in "${JAVA_HOME:-}" "$(home_of_command)"; do
        if [ -n "$home" ] && good "$home"; then printf '%s\n' "$home"; return 0; fi
    done
    for dir in ${HOLDFAST_JVM_DIRS:-/usr/lib/jvm /usr/java /opt/java}; do
        for home in "$dir"/*; do
            if good "$home"; then printf '%s\n' "$home"; return 0; fi
        done
    done
    return 1
}

# The command that installs Java here, or nothing where we know none.
install_command() {
    if command -v apt-get >/dev/null 2>&1; then echo "apt-get install -y openjdk-17-jre-headless"
    elif command -v dnf >/dev/null 2>&1; then echo "dnf install -y java-17-openjdk-headless"
    elif command -v apk >/dev/null 2>&1; then echo "apk add openjdk17-jre-headless"
    fi
}

# How we may run it: as we are, by sudo without a password, or not at all.
rights() {
    if [ "$(id -u)" = 0 ]; then return 0; fi
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then echo "sudo -n"; return 0; fi
    return 1
}

if look; then exit 0; fi

command=$(install_command)
if [ -n "$command" ] && [ -z "${HOLDFAST_NO_INSTALL:-}" ] && as=$(rights); then
    say "no Java 17 or newer found; running: ${as:+$as }$command"
    case "$command" in apt-get*) $as apt-get update -qq >&2 || true ;; esac
    # shellcheck disable=SC2086
    if $as $command >&2 && look; then exit 0; fi
    say "that did not give a usable Java."
fi

say "Java 17 or newer is needed (Spark runs on it) and none was found."
if [ -n "$command" ]; then
    say "Next: sudo $command"
else
    say "Next: install a Java 17 runtime."
fi
say "      Or, where Java is already unpacked: export JAVA_HOME=/path/to/it. Then run the same command again."
exit 1
