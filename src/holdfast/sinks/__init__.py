"""Sinks: where streams write their epochs.

`holdfast` exports the sinks and the contract; the names of `__all__` here are the functions of compaction, and what the
author of a sink or a tool needs beyond them. Sinks can be imported without pyspark, which is needed only when a stream
runs. The modules of this package are internal, except `base`, which states the contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import attach

_HOMES = {
    "sinks.base": ["CannotTakeBack", "EpochPlace", "Link", "TakeBack"],
    "sinks.places": ["FilePlace", "file_sinks"],
    "sinks.compaction.plan": ["CompactPlan", "plan_compact"],
    "sinks.compaction.apply": ["Compacted", "apply_compact"],
    "sinks.foreach": ["ForeachKey"],
    "sinks.marker.rows": ["StagedRows"],
}
_getattr, __dir__, __all__ = attach("holdfast.sinks", _HOMES, needs={})

if TYPE_CHECKING:
    from holdfast.sinks.base import CannotTakeBack as CannotTakeBack
    from holdfast.sinks.base import EpochPlace as EpochPlace
    from holdfast.sinks.base import Link as Link
    from holdfast.sinks.base import TakeBack as TakeBack
    from holdfast.sinks.compaction.apply import Compacted as Compacted
    from holdfast.sinks.compaction.apply import apply_compact as apply_compact
    from holdfast.sinks.compaction.plan import CompactPlan as CompactPlan
    from holdfast.sinks.compaction.plan import plan_compact as plan_compact
    from holdfast.sinks.foreach import ForeachKey as ForeachKey
    from holdfast.sinks.marker.rows import StagedRows as StagedRows
    from holdfast.sinks.places import FilePlace as FilePlace
    from holdfast.sinks.places import file_sinks as file_sinks
else:  # a type checker must see misspelt names
    __getattr__ = _getattr
