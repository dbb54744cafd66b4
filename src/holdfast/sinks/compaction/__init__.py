"""Compaction of a FileSink's folder. Public: `plan`, `apply`. Private: the runs, the merge of files, and the trees."""
