"""The result of a verification: findings, and the grade up to which the checkpoint was checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

from holdfast import _figures as figures
from holdfast.formats.manifest_parts import Severity
from holdfast.formats.sealed_json import plain


class Grade(IntEnum):
    """How thoroughly to verify; a higher grade includes the lower ones."""

    STRUCTURE = 1  # the records, and that every file exists with its size; no file is read
    DIGESTS = 2  # every byte of every file
    READ_DATA = 3  # Spark loads the state

    @property
    def word(self) -> str:
        """The grade as text."""
        return self.name.lower().replace("_", " ")


class FindingCode(StrEnum):
    """The codes of findings, besides those of a manifest's own validation and further ones of `ReadData`."""

    MANIFEST = "manifest-damaged"
    UNREADABLE = "file-unreadable"  # the storage failed: it is not known whether the file is damaged
    IDENTITY = "identity-unreadable"
    FOREIGN = "of-another-pipeline"
    PARENT = "chain-broken"
    LIST = "file-list-damaged"
    COUNT = "file-list-miscounted"
    FILE_MISSING = "file-missing"
    FILE_SIZE = "file-size"
    FILE_DIGEST = "file-digest"
    FILE_ETAG = "file-replaced"
    SIDECAR = "sidecar-damaged"
    STATE = "state-damaged"
    STATE_UNREADABLE = "state-unreadable"  # Spark could not load it, although its bytes are as they were stored
    EDGE = "downstream-ahead"
    IN_DOUBT = "epoch-in-doubt"
    DECISION = "decision-damaged"


_INCONCLUSIVE: frozenset[str] = frozenset({FindingCode.UNREADABLE, FindingCode.PARENT, FindingCode.STATE_UNREADABLE})


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem, and where it was found."""

    code: str  # a stable code such as `file-missing`: never renamed
    severity: Severity  # a warning does not prevent a restore
    message: str  # the description
    where: str  # the file or record

    @property
    def is_conclusive(self) -> bool:
        """Whether it is an error that shows that the checkpoint cannot be restored.

        Other errors leave that open: the storage or Spark failed, or the chain of parents is broken. Every byte may be
        right nevertheless.
        """
        return self.severity is Severity.ERROR and self.code not in _INCONCLUSIVE

    def __str__(self) -> str:
        return f"{self.severity}: {self.message} [{self.code}, {self.where}]"


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying one checkpoint."""

    checkpoint: int | str  # its id, or the name of a savepoint
    grade: Grade
    findings: tuple[Finding, ...]
    files: int  # number of files that it needs
    bytes: int  # their total size
    seconds: float  # duration of the verification

    @property
    def ok(self) -> bool:
        """Whether there is no error; there may be warnings."""
        return not any(each.severity is Severity.ERROR for each in self.findings)

    @property
    def is_unsound(self) -> bool:
        """Whether an error shows that it cannot be restored."""
        return any(each.is_conclusive for each in self.findings)

    def summary(self) -> str:
        """Return the result as text: one line, and one more per finding."""
        unsound = "CANNOT BE RESTORED as it is" if self.is_unsound else "is not known to be sound"
        verdict = "is sound" if self.ok else unsound
        checked = f"{figures.number(self.files)} files, {figures.size(self.bytes)}, {self.seconds:.2f} s"
        head = f"checkpoint {self.checkpoint} {verdict} ({self.grade.word}: {checked})"
        return "\n".join([head, *(f"  {each}" for each in self.findings)])

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {**plain(self), "grade": self.grade.word, "ok": self.ok}


@dataclass(slots=True)
class FindingsSoFar:
    """The findings of a verification in progress, and the number and size of the files."""

    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    bytes: int = 0

    def add(self, code: str, severity: Severity, message: str, where: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(code, severity, message, where))

    def error(self, code: FindingCode, message: str, where: str) -> None:
        """Add an error."""
        self.add(code, Severity.ERROR, message, where)

    def warning(self, code: FindingCode, message: str, where: str) -> None:
        """Add a warning."""
        self.add(code, Severity.WARNING, message, where)

    @property
    def errors(self) -> bool:
        """Whether there is an error."""
        return any(each.severity is Severity.ERROR for each in self.findings)
