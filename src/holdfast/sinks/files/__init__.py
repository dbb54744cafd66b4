"""Files as a sink: the sink, the names and records in its folder, and the gate that compaction closes."""
