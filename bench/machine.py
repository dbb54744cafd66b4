"""Hardware and versions that the figures were measured with, without paths or host names."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import holdfast

ROOT = Path(__file__).parents[1]
MEASURED = ("src", "bench")  # a change elsewhere does not affect the figures


def machine() -> dict[str, str]:
    """Return the properties of the machine that are known."""
    found = {
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": _line("/proc/cpuinfo", r"model name\s*: (.+)") or platform.machine(),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",  # without the suffix of a build
        "file system": file_system(Path.cwd()),
        "disk": disk(Path.cwd()),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }
    return {name: value for name, value in found.items() if value}


def versions() -> dict[str, str]:
    """Return the versions of Holdfast, Python, Java and Spark."""
    found = {"Holdfast": f"{holdfast.__version__}{commit()}", "Python": platform.python_version(), "Java": java()}
    try:
        found["Spark"] = version("pyspark")
    except PackageNotFoundError:
        found["Spark"] = ""
    return {name: value for name, value in found.items() if value}


def commit() -> str:
    """Return the commit, and whether the measured code differs from it; an empty string outside a Git clone."""
    head = _output("git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD")
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "--", *MEASURED)
    return "" if not head else f", commit {head}{', with uncommitted changes' if changed else ''}"


def java() -> str:
    """Return the version of the Java that Spark will start."""
    home = os.environ.get("JAVA_HOME")
    output = _output(f"{home}/bin/java" if home else "java", "-version")
    found = re.search(r'version "([^"]+)"', output)
    return found[1] if found else ""


def file_system(folder: Path) -> str:
    """Return the type of the file system that a folder is on."""
    number = folder.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    return _line("/proc/self/mountinfo", rf"\d+ \d+ {device} .* - (\S+) ")


def disk(folder: Path) -> str:
    """Return the kind of disk that a folder is on. A virtual disk does not reveal the hardware below it."""
    number = folder.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    if "/virtio" in str(block) or "/virtual/" in str(block):
        return "virtual"
    for place in (block, block.parent):  # a partition is below its disk
        flag = place / "queue/rotational"
        if flag.is_file():
            return "rotating" if flag.read_text().strip() == "1" else "solid state"
    return ""


def _memory() -> str:
    kilobytes = _line("/proc/meminfo", r"MemTotal:\s+(\d+) kB")
    return f"{int(kilobytes) / 2**20:.1f} GiB" if kilobytes else ""


def _line(path: str, pattern: str) -> str:
    """Return the first match of a pattern in a kernel file."""
    try:
        found = re.search(f"^{pattern}", Path(path).read_text(), re.MULTILINE)
    except OSError:
        return ""
    return found[1].strip() if found else ""


def _output(*command: str) -> str:
    """Return the output of a command, stdout and stderr; an empty string if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return (done.stdout + done.stderr).strip()
