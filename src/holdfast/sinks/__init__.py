"""Sinks: where streams write their epochs.

Public modules:

- `base`: the contract that every sink implements.
- `files.sink`, `foreach`, `log`, `postgres.sink`, `sqlite`: one sink each. They can be imported without pyspark, which
  is needed only when a stream runs.
- `compaction.plan`, `compaction.apply`: compaction of a `FileSink` folder.
- `places`: the folders that the file sinks of a pipeline write to.

All other modules are private.
"""
