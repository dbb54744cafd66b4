"""The entry point of the `holdfast` command.

It is a module of its own, outside of the package `holdfast`, because another distribution on PyPI installs a package of
the same name. Where that one, or a file of the user, comes first on the path, this module can still report it.
"""

from __future__ import annotations

import importlib
import sys

DISTRIBUTION = "holdfast-spark"


def main() -> None:
    """Run the command, or report the package that is imported in its place."""
    foreign = found_instead()
    if foreign is not None:
        sys.stderr.write(
            f"error: {foreign} is imported as `holdfast`, but it does not belong to {DISTRIBUTION}\n"
            "next:  if it is a file of yours, rename it; otherwise: pip uninstall holdfast, then "
            f"pip install --force-reinstall --no-deps {DISTRIBUTION}\n"
        )
        sys.exit(2)
    importlib.import_module("holdfast.cli").main()


def found_instead() -> str | None:
    """Return where another `holdfast` is imported from; `None` if the package is ours."""
    try:
        package = importlib.import_module("holdfast")
    except ModuleNotFoundError as error:
        if error.name != "holdfast":
            raise
        return "nothing"
    if getattr(package, "__distribution__", None) == DISTRIBUTION:
        return None
    return getattr(package, "__file__", None) or str(getattr(package, "__path__", "a namespace package"))


if __name__ == "__main__":
    main()
