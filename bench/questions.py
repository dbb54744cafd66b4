"""The questions that the benchmarks answer, in the order of the report."""

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
    "path": "Other costs of an epoch, a checkpoint and the command",
}

# The introduction of each section of the page. It has no figures; those come from the run.
PROSE = {
    "stateless": "The duration of a small micro-batch, with and without exactly-once delivery to the sink.",
    "stateful": "The same for a stateful query, whose state files Spark writes in every batch.",
    "large": "Shows whether the cost is per epoch or per row: in a large batch, only a cost per row is visible.",
    "postgres": "Writing to a table exactly once, compared with Spark's own JDBC writer.",
    "sinks": "One stream that writes the same rows to two sinks, with one decision for both.",
    "decision": "The one durable write that closes an epoch, compared with the fastest one that the disk allows.",
    "restart": "From the start of a stream to the end of its first new epoch, for different lengths of history.",
    "growth": "Costs that may grow with the age and the size of a pipeline.",
    "path": "Smaller costs of each epoch and each checkpoint, and the waiting times of a person who uses the command.",
}

# The introduction of the list of unfavourable results. The list itself comes from the results.
NOT_IN_OUR_FAVOUR = """\
Every goal that was missed, and every result that is worse than the side it is compared with, with or without a goal.

Not measured: recovery after a kill, a cold start, memory usage, reading many epoch folders, Kafka, network disks and
clusters, state that does not fit into memory, machines with more cores."""

# Each module has a `run(quick)` that returns results, and may have a dict `VERSIONS` of other software that it ran.
# Modules that are most sensitive to other load come first.
MODULES = (
    "triggers",
    "large",
    "sinks",
    "postgres",
    "restart",
    "growth",
    "barrier",
    "durable",
    "digest",
    "checkpoints",
    "cuts",
    "start",
)
NOT_QUICK = ("growth", "digest", "cuts")  # small sizes would not answer their questions
