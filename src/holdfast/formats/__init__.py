"""Byte formats: everything that Holdfast writes to disk. Pure: no clock, thread or file access.

Public are `Manifest`, `StreamCut`, `pipeline_hash` and `pack_states`. `holdfast.stores` exports the checkpoint state,
and `holdfast.stages` the blocks. The modules of this package are internal.
"""

from holdfast.formats.manifest import Manifest, pipeline_hash
from holdfast.formats.manifest_parts import StreamCut
from holdfast.formats.sidecar import pack_states

__all__ = ["Manifest", "StreamCut", "pack_states", "pipeline_hash"]
