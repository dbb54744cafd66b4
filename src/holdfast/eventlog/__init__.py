"""The event log: committed events in one global sequence, cursors that read it, and workers that process the events.

Public, and also exported by `holdfast`: `log` (`EventLog`), `writer` (`LogWriter`), `cursor` (`Cursor`,
`DurableCursor`, `Gap`), `region` (`Region`, `KindFilter`), `segment` (`NewEvent`, `LogEvent`) and `worker`
(`CursorWorker` and its types). `repair.repair(path)` is public too. The module `index` and the modules with an
underscore are internal.
"""
