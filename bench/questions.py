"""What the benchmarks ask, in the order in which they are told."""

from __future__ import annotations

QUESTIONS = {
    "stateless": "Trigger time of small batches, stateless",
    "stateful": "Trigger time of small batches, with state",
    "large": "Large batches to Parquet",
    "postgres": "Rows into PostgreSQL",
    "sinks": "Two sinks at once",
    "decision": "The decision of an epoch",
    "restart": "Restart to the first new epoch",
    "growth": "Growth",
    "path": "What else is on the path of an epoch, and of who looks",
}

# Each module has a `run(quick)` that returns results. In this order: what needs a quiet machine most comes first.
MODULES = (
    "triggers",
    "large",
    "sinks",
    "postgres",
    "restart",
    "growth",
    "barrier",
    "durable",
    "checkpoints",
    "cuts",
    "start",
)
