"""What the demo needs of the machine, looked for before anything is started."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from holdfast.errors import MissingExtra, NotSupported

_JAVA = 17  # Spark 4 runs on nothing older


def require() -> None:
    """Raise what is missing: PySpark, pyarrow, or a Java that Spark can run on."""
    for module in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(extra="spark", module=module)
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    found = _version(java) if java else 0
    if found >= _JAVA:
        return
    where = "JAVA_HOME" if home else "the PATH"
    why = f"Spark runs on Java {_JAVA} or newer, and " + (
        f"{java} is {f'version {found}' if found else 'no Java that can be run'}" if java else f"{where} leads to none"
    )
    do = f"install one (on Debian: apt-get install openjdk-{_JAVA}-jre-headless), or export JAVA_HOME=/path/to/it"
    raise NotSupported(what="the demo on this machine", why=why, do=do)


def _version(java: str) -> int:
    """Return Java's major version; "1.8" counts as 1, and what cannot be run as 0."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)', said)
    return int(found[1]) if found else 0
