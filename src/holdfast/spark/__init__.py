"""Pipelines on Spark: the epoch protocol, recovery and supervision. `adapter` alone knows Spark's internals."""
