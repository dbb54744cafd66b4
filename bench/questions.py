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

# What the page says of each before its figures. No figure stands here: those come from the run.
PROSE = {
    "stateless": "What a small micro-batch takes when its rows reach the sink exactly once, and what when they do not.",
    "stateful": "The same for a query with state, whose files Spark writes in every batch.",
    "large": "Whether the price is one by the epoch, or one by the row: in a large batch only the latter would show.",
    "postgres": "A table that is filled exactly once, against Spark's own writer into one.",
    "sinks": "One stream into two sinks, with the same rows in both and one decision for both.",
    "decision": "The one durable write that closes an epoch, against the least that a disk allows.",
    "restart": "From the start of a stream to the end of its first new epoch, by how long it has run before.",
    "growth": "What grows with the age and the size of a pipeline, and what must not.",
    "path": "Smaller things that a pipeline pays for in each epoch or each checkpoint, and what a person waits for.",
}

# What the page says before the list of what is slower than its rival; that list is drawn from the results.
NOT_IN_OUR_FAVOUR = """\
Every goal that was missed, and every result that is worse than what it is compared with, goal or no goal.

Not measured: recovery after a kill, a cold start, memory, readers of many epoch folders, Kafka, network disks and
clusters, state that does not fit into memory, more cores than this machine has."""

# Each module has a `run(quick)` that returns results, and may have a dict `VERSIONS` of what else it ran, by name.
# In this order: what needs a quiet machine most comes first.
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
NOT_QUICK = ("growth", "digest", "cuts")  # no first questions, and small sizes would not answer them
