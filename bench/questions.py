"""The questions that the benchmarks answer, in the order of the report."""

from __future__ import annotations

QUESTIONS = {
    "stateless": "Trigger time of small batches, stateless",
    "stateful": "Trigger time of small batches, with state",
    "visible": "Time until a row is visible",
    "large": "Large batches to Parquet",
    "postgres": "Rows into PostgreSQL",
    "kafka": "Rows into Kafka",
    "sinks": "Two sinks at once",
    "lake": "Delta Lake and Iceberg",
    "decision": "The decision of an epoch",
    "restart": "Restart to the first new epoch",
    "cold": "A cold start",
    "idle": "Idle streams",
    "killed": "Kill to the first new row",
    "growth": "Growth",
    "back": "Going back",
    "store": "On an object store",
    "page": "The web page",
    "path": "Other costs of an epoch, a checkpoint and the command",
    # On the page that compares Holdfast with Flink:
    "flink visible": "Time until a row is visible, Flink",
    "flink cpu": "CPU time at a low rate, Flink",
    "flink killed": "Kill to the first new row, Flink",
    "flink bulk": "Many rows at once, Flink",
}

# The introduction of each section of the page. It has no figures; those come from the run.
PROSE = {
    "stateless": "The duration of a small micro-batch, with and without exactly-once delivery to the sink.",
    "stateful": "The same for a stateful query, whose state files Spark writes in every batch.",
    "visible": "From the arrival of a row to the moment at which a reader of the output finds it, at a low rate.",
    "large": "Shows the cost per row: in a large batch, the fixed cost of an epoch is negligible.",
    "postgres": "Writing to a table exactly once, compared with Spark's own JDBC writer.",
    "kafka": "Writing to a topic exactly once, in one transaction for each epoch, compared with Spark's own writer.",
    "sinks": "One stream that writes the same rows to two sinks, with one decision for both.",
    "lake": "Epochs into lake tables, compared with Spark's plain Parquet write, and a commit after many epochs.",
    "decision": "The one durable write that closes an epoch, compared with the fastest one that the disk allows.",
    "restart": "From the start of a stream to the end of its first new epoch, for different lengths of history.",
    "cold": "From the start of a process, whose JVM must start first, to the end of its first epoch.",
    "idle": "The CPU time of streams without input.",
    "killed": "From SIGKILL of a running program to the first new row in its output, with a new process.",
    "growth": "Costs that may grow with the age and the size of a pipeline.",
    "back": "The plan of a rewind, and a rewind compared with the file operations that it consists of.",
    "store": "A small micro-batch whose checkpoint is on an object store, its requests, and a restart.",
    "page": "The cost of open pages for a running pipeline, and the time until the first view of a long history.",
    "path": "Smaller costs of each epoch and each checkpoint, and the time that a user waits for the command.",
    "flink visible": "From the arrival of a row to the moment at which a reader of the output finds it, at a low rate.",
    "flink cpu": "The CPU time that the program uses per second while it waits for rows and handles a few of them.",
    "flink killed": "From SIGKILL of a running program to the first new row in its output, with a new process.",
    "flink bulk": "Rows per second of a backlog: for a running program, and for one that has just been started.",
}

# The introduction of the list of unfavourable results. The list itself comes from the results.
NOT_IN_OUR_FAVOUR = """\
Every goal that was missed, and every result that is worse than that of the other side, with or without a goal.

Not measured: a start after a reboot, with an empty page cache; memory usage, reading many epoch folders, network disks
and clusters, state that does not fit into memory, machines with more cores."""

# Each module has a `run(quick)` that returns results, and may have a dict `VERSIONS` of other software that it ran.
# Modules that are most sensitive to other load come first.
MODULES = (
    "triggers",
    "visible",
    "large",
    "sinks",
    "postgres",
    "lake",
    "kafka",
    "openpages",
    "restart",
    "coldstart",
    "idle",
    "killed",
    "recovering",
    "growth",
    "barrier",
    "durable",
    "digest",
    "checkpoints",
    "cuts",
    "rewind",
    "objectstore",
    "start",
)
NOT_QUICK = (
    "idle",
    "killed",
    "growth",
    "digest",
    "cuts",
    "lake",
    "objectstore",
)  # few rounds or small sizes would not answer their questions, or they take long all the same
