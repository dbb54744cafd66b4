"""Compaction of a FileSink's folder: the plan, its application, and the merge of files by Spark."""
