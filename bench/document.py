"""One run of the benchmarks, and its JSON, from which the page and its plots are generated."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import msgspec

from bench.compare import Result


@dataclass(frozen=True)
class Measured:
    """The results of one module."""

    module: str
    method: str  # its docstring
    seconds: float
    results: Sequence[Result]
    failed: str = ""  # why it has no results
    version: str = ""  # of Holdfast, if it is not that of the whole run


@dataclass(frozen=True)
class Document:
    """A run of the benchmarks."""

    date: str
    quick: bool
    seconds: float
    machine: dict[str, str]
    versions: dict[str, str]
    modules: Sequence[Measured]
    format: int = 1
    left_out: Sequence[str] = field(default_factory=tuple)  # modules that were not run

    @property
    def results(self) -> list[Result]:
        """All results, module by module."""
        return [each for measured in self.modules for each in measured.results]

    @property
    def failed(self) -> dict[str, str]:
        """Why modules have no results, by name."""
        return {each.module: each.failed for each in self.modules if each.failed}

    @property
    def good(self) -> bool:
        """Whether every module ran and every goal is met."""
        return not self.failed and all(each.met is not False for each in self.results)

    def of(self, question: str) -> list[Measured]:
        """Return the modules that answer a question, each with only its results for that question."""
        found = []
        for each in self.modules:
            answers = [result for result in each.results if result.question == question]
            if answers:
                found.append(Measured(each.module, each.method, each.seconds, answers))
        return found

    def renewing(self, older: Document) -> Document:
        """Return the older run, updated by this one. `fits` says whether the two can share a page."""
        found = {each.module: each for each in (*older._with_versions(), *self._with_versions())}
        seconds = round(sum(each.seconds for each in found.values()), 1)
        left_out = [name for name in self.left_out if name not in found]
        versions = {**older.versions, **self.versions, "Holdfast": _versions(list(found.values()))}
        return replace(self, modules=list(found.values()), seconds=seconds, left_out=left_out, versions=versions)

    def _with_versions(self) -> list[Measured]:
        of_all = self.versions["Holdfast"].partition("; ")[0]
        return [replace(each, version=each.version or of_all) for each in self.modules]

    def fits(self, older: Document) -> bool:
        """Whether this run can update an older one: both are of one kind of machine, and of the same versions."""
        return self._setting() == older._setting()

    def _setting(self) -> tuple[object, ...]:
        machine = {name: value for name, value in self.machine.items() if name != "load before"}
        return self.quick, machine, *(self.versions.get(name, "") for name in ("Python", "Java", "Spark"))

    def to_json(self) -> str:
        """Return JSON that includes derived figures. The samples of a side are on one line."""
        plain = asdict(self)
        for module, each in zip(plain["modules"], self.modules, strict=True):
            module["results"] = [result.plain() for result in each.results]
        text = json.dumps(plain, indent=1, ensure_ascii=False)
        return re.sub(r"\[\n\s+([-\d.e,\s]+?)\n\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Document:
        """Parse JSON. Derived figures are calculated again."""
        return msgspec.json.decode(text, type=cls)


def _versions(modules: Sequence[Measured]) -> str:
    """Return the version of Holdfast of most modules, and the modules that were measured with another one."""
    names: dict[str, list[str]] = {}
    for each in modules:
        names.setdefault(each.version, []).append(each.module)
    most = max(names, key=lambda version: len(names[version]))
    others = [f"; {', '.join(of)}: {version}" for version, of in names.items() if version != most]
    return most + "".join(others)
