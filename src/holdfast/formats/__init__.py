"""Bytes on disk: manifest, sidecar, state, blocks, envelope, sealed JSON. Pure: no clock, thread or file."""
