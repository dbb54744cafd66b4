"""Public names of a package that are imported at their first use.

A program that only reads a repository starts fast, and a name that needs an optional package raises `MissingExtra` when
it is used, not when the package is imported. A name that cannot be imported here is not in `__all__`, so that help(),
completion and `import *` work without it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

from holdfast._extras import is_supported, missing_extra, pyspark_version


def attach(
    package: str,
    homes: Mapping[str, Sequence[str]],
    *,
    modules: Sequence[str] = (),
    needs: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    `homes` maps a module to the names that it defines, `modules` are submodules that are public themselves, and
    `needs` maps an optional package to the modules that cannot be imported without it. All modules are named relative
    to `holdfast`.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    missing = {home for extra, kept in (needs or {}).items() if not _is_usable(extra) for home in kept}
    public = [*modules, *sorted(name for name, home in home_of.items() if home not in missing)]

    def get(name: str) -> object:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        try:
            return getattr(importlib.import_module(f"holdfast.{home_of[name]}"), name)
        except ModuleNotFoundError as error:
            raise missing_extra(error) or error from error

    return get, lambda: sorted(public), public


def _is_usable(package: str) -> bool:
    return find_spec(package) is not None and (package != "pyspark" or is_supported(pyspark_version()))
