"""`holdfast backfill`: fills a sink that was added to a stream."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, cast

import msgspec
import typer
from rich.console import Console

from holdfast.cli import formatting
from holdfast.cli.answers import Answer
from holdfast.cli.options import Json, TargetName
from holdfast.cli.programs import find_target, named_in_errors, pipeline_of

if TYPE_CHECKING:
    from holdfast.spark.spec import Accept


class FilledSink(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a backfill."""

    stream: str  # its name
    sink: str  # the sink that was filled
    source: str  # the sink that the rows were read from
    epoch: int  # the sink holds everything up to this epoch
    rows: int  # number of rows
    already: bool  # whether an earlier backfill had already filled it


SHAPES = {"backfill": FilledSink}


def backfill(
    target: TargetName,
    stream: Annotated[str, typer.Option("--stream", metavar="NAME", help="The stream that has the new sink.")],
    sink: Annotated[str, typer.Option("--sink", metavar="NAME", help="The name of the new sink.")],
    source: Annotated[
        str | None,
        typer.Option(
            "--source", metavar="NAME", help="The sink to read from; by default the first one that can be read."
        ),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept",
            metavar="sinks",
            help="Accept that a sink is no longer in the program: the new one replaces it.",
        ),
    ] = None,
    as_json: Json = False,
) -> Answer:
    """Fill a sink that was added to a stream.

    An added sink starts empty. This command writes to it every row that the stream has written so far. The rows are
    read from another sink of the stream: files or an event log. They become visible in one commit, with the last epoch
    of the stream. Stop the pipeline, add the sink to the program, and run this command before the next start, which
    continues with all sinks. If the command is interrupted, run it again. If the new sink replaces one that is no
    longer in the program, for example because its file was deleted, pass --accept sinks.

    [bold]Examples[/]

        holdfast backfill app.py:pipeline --stream orders --sink sqlite.orders
        holdfast backfill app.py --stream orders --sink new --accept sinks
        holdfast backfill app.py --stream orders --sink totals --source files.orders --json
    """
    found = find_target(target)
    from holdfast.spark.session import require_java, silence_spark  # PySpark may not be installed

    require_java()
    silence_spark()
    pipeline = pipeline_of(found, [])
    with named_in_errors(target):
        result = pipeline.backfill(stream=stream, sink=sink, source=source, accept=cast("list[Accept]", accept or []))

    def print_it(console: Console) -> None:
        rows = f"{formatting.counted(result.rows, 'row')} from sink {result.source}, up to epoch {result.epoch}"
        text = f"sink {result.sink} of stream {result.stream} {'already has' if result.already else 'now has'} {rows}"
        console.print(formatting.harmless(text), soft_wrap=True, markup=False)
        console.print(f"next: holdfast run {shlex.quote(target)}", soft_wrap=True, markup=False)

    return Answer(msgspec.convert(result.to_dict(), FilledSink), print_it, repository=pipeline.repository.where)
