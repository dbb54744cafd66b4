"""The pages of the docs that are generated from runs: their files, their modules and their texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.questions import MODULES, NOT_IN_OUR_FAVOUR, NOT_QUICK

FOLDER = Path(__file__).parents[1] / "docs"


@dataclass(frozen=True)
class Page:
    """One page. The opening is a template; it has no figures of its own."""

    stem: str  # of the names of its files
    package: str  # of its modules
    target: str  # of `make`, which measures again and writes the page
    modules: tuple[str, ...]
    opening: str
    not_in_our_favour: str
    not_quick: tuple[str, ...] = ()
    grows: bool = True  # whether it has a picture of curves

    @property
    def json(self) -> str:
        """The name of the file with every sample."""
        return f"{self.stem}.json"

    @property
    def page(self) -> str:
        """The name of the page."""
        return f"{self.stem}.md"

    @property
    def plot(self) -> str:
        """The name of the plot of the ratios."""
        return f"{self.stem}.svg"

    @property
    def charts(self) -> str:
        """The name of the picture of the curves."""
        return f"{self.stem}-growth.svg"

    def file_of(self, module: str) -> str:
        """Return the path of a module, relative to the repository."""
        return f"{self.package.replace('.', '/')}/{module}.py"


MAIN = Page(
    stem="benchmarks",
    package="bench",
    target="bench-docs",
    modules=MODULES,
    not_quick=NOT_QUICK,
    not_in_our_favour=NOT_IN_OUR_FAVOUR,
    opening="""\
# Benchmarks

This page shows what the guarantees cost. Each figure of Holdfast (*ours*) is compared with that of another side
(*theirs*), such as plain Spark. The sides run alternately, in the same run on the same machine. A few figures are
compared with a fixed limit instead; the tables say so. *Plain Spark* is a job that writes in `foreachBatch`, as most
jobs do. It writes each row at least once. The goals were set before the first measurement.

This page and its plots are generated from [{json}]({json}), which contains every sample. No figure is typed by hand; a
test checks this. `make bench` runs the benchmarks on your machine, `make bench-quick` runs a short version, and
`make bench-docs` updates this page. [Another page](benchmarks-peers.md) compares Holdfast with Apache Flink.

**{total}**
{price}
![Ratios of ours to theirs, with their goals]({plot})

How to read the tables:

- The *ratio* is our figure divided by theirs. For times, less is better; for rows per second, more is better.
- Figures are medians, or the best samples where the table says so. The *p99* is given for sides with at least {enough}
  samples.
- *Samples* and *spread* are given as ours : theirs. The spread is the interquartile range divided by the median.
- A *floor* is a side of the same run that does only the unavoidable work: Spark alone, or Spark with a bare two-phase
  commit. It is compared in the same way as our side. A goal that is missed is shown with its floor, if it has one. A
  goal beyond the floor is out of reach for any job on Spark with the same guarantees. The difference between the floor
  and our figure is the cost of Holdfast itself.
- In every figure, all durable writes of Holdfast are synced; Spark syncs none of its own files.
""",
)

PEERS = Page(
    stem="benchmarks-peers",
    package="bench.peers",
    target="bench-peers",
    modules=("visible", "killed", "bulk"),
    grows=False,
    opening="""\
# Holdfast and Flink

This page compares Holdfast (*ours*) with Apache Flink (*theirs*), which is exactly-once too. Both run the same job,
alternately, in the same run on the same machine. This page and its plot are generated from [{json}]({json}), which
contains every sample. No figure is typed by hand; a test checks this. `make bench-peers` installs Flink into an
environment of its own, runs the benchmarks and updates this page. [The other page](benchmarks.md) compares Holdfast
with plain Spark.

The job reads CSV files of five columns from a folder, continuously, and writes CSV files to another folder, exactly
once. It has no state. Both systems run on one machine, as their users start them there: one Python process and one JVM.

**How Flink is configured.** The aim is Flink at its best for this job:

- The job is SQL with Flink's own file source and file sink. Every row stays in Java: no Python function runs.
- Parallelism is the number of cores. Objects are reused. Checkpoints are exactly-once, incremental, in a local folder,
  and retained, so that a restart continues from the last one.
- Rows in Flink's output become visible when a checkpoint completes, so the interval between checkpoints matters most.
  Flink runs twice: with an interval that is common, and with one that is as short as is sensible.
- Between two checkpoints there is a pause of at least four fifths of the interval. Flink is suspended while another
  side runs. Without the pause, it would then make up for all checkpoints that it has missed, and its rows would be
  visible sooner than in normal use.
- The source polls for new files a hundred times per second, as Spark does. By default, Flink lists a folder only once.
- Its JVM has the default heap, a quarter of the memory. This heap is larger than that of Holdfast, which has Spark's
  default.

Holdfast runs with all defaults: a pipeline with one file sink, in an embedded session. The goals were set before the
first measurement on this page.

**{total}**

![Ratios of ours to theirs, with their goals]({plot})

How to read the tables:

- The *ratio* is our figure divided by that of Flink. Figures are medians. For times, less is better; for rows per
  second, more is better.
- The *p99* is given for sides with at least {enough} samples.
- *Samples* and *spread* are given as ours : theirs. The spread is the interquartile range divided by the median.
- A *floor* is Spark without Holdfast: about the least that a system on Spark needs with these
  settings.
""",
    not_in_our_favour="""\
Every goal that was missed, and every result in which Flink is better, with or without a goal.

Not measured: state, joins and windows; Kafka; clusters and machines with more cores; memory usage; recovery of large
state.

Flink handles each row as it arrives. If readers may see rows before a checkpoint completes, for example through Kafka
without transactions, a row in Flink does not wait for an interval at all. In Spark, a row always waits for the end of
its batch.""",
)

PAGES = (MAIN, PEERS)
