"""Benchmarks: each compares two sides in one run and prints their ratio against a goal."""
