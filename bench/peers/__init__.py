"""Benchmarks that compare Holdfast with Apache Flink: `make bench-peers`."""
