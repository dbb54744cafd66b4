#!/bin/sh
# Prints the home of a Java 17 or newer. If there is none, installs one with the system's package manager, provided that
# needs no password; otherwise prints the command to type. Set HOLDFAST_NO_INSTALL=1 to forbid the installation.
# Set HOLDFAST_JVM_DIRS to search other folders for Java homes.
set -eu

say() { printf 'set-up: %s\n' "$*" >&2; }

# Prints the major version of the Java in this home, or nothing. "1.8.0" counts as 1: too old.
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
    # The command may be a link or a shim, so ask Java itself for its home.
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

# Prints the command that installs Java here, or nothing if it is unknown.
install_command() {
    if command -v apt-get >/dev/null 2>&1; then echo "apt-get install -y openjdk-17-jre-headless"
    elif command -v dnf >/dev/null 2>&1; then echo "dnf install -y java-17-openjdk-headless"
    elif command -v apk >/dev/null 2>&1; then echo "apk add openjdk17-jre-headless"
    fi
}

# Prints the prefix that gives the rights to install: empty for root, or sudo if it needs no password.
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
    say "the installation did not provide a usable Java."
fi

say "Java 17 or newer is required by Spark, but was not found."
if [ -n "$command" ]; then
    say "Next: sudo $command"
else
    say "Next: install a Java 17 runtime."
fi
say "      Or, if Java is installed elsewhere: export JAVA_HOME=/path/to/it. Then run the same command again."
exit 1
