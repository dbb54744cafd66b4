"""Byte formats: everything that Holdfast writes to disk. Pure: no clock, thread or file access.

Public, and also exported by `holdfast`: `manifest` (`Manifest`, `StreamCut`, `pipeline_hash`), `sidecar`
(`pack_states`), `state` (`CheckpointId`, `CheckpointState`) and `blocks` (`BlockDevice`, `MemoryBlocks`). The modules
`decoding`, `envelope` and `sealed_json` are internal.
"""
