"""Verify: check whether a checkpoint can be restored.

Public: `verify`, `verify_all`, the values `Verification`, `Finding`, `FindingCode` and `Grade`, and the callback types
`Progress` and `ReadData`. Everything else is internal.
"""

from holdfast.verification.checks import ReadData, verify, verify_all
from holdfast.verification.findings import Finding, FindingCode, Grade, Verification
from holdfast.verification.reading import Progress

__all__ = ["Finding", "FindingCode", "Grade", "Progress", "ReadData", "Verification", "verify", "verify_all"]
