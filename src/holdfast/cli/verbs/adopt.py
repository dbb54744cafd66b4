"""`holdfast adopt`: continues the query of a plain Spark checkpoint as a stream of a pipeline. Shows the plan first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from holdfast.cli.answers import Answer, approved, require_approval
from holdfast.cli.holder import holder_of
from holdfast.cli.options import Json, TakeOver, Yes
from holdfast.cli.outlets import into_stderr
from holdfast.cli.programs import Target, as_program_error, find_target, is_users_error, pipeline_of
from holdfast.cli.tables import TableRows, fields
from holdfast.errors import BadValue, Locked
from holdfast.plainspark import AdoptedSource, Adoption, AdoptPlan

if TYPE_CHECKING:
    from holdfast.spark.pipeline import Pipeline


class Adopt(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of an adoption, and its result."""

    pipeline: str  # its name
    stream: str  # its name
    checkpoint: str  # the folder of the plain Spark query
    query: str  # the id of that query
    committed: int | None  # its last committed batch
    in_doubt: int | None  # the batch after it, if it was begun
    last_batch: dict[str, str]  # by sink: written or not-written; empty if no batch is in doubt
    sinks: list[str]  # the sinks of the stream
    sources: list[AdoptedSource]  # where each source continues
    state: list[str]  # providers and formats of the state, such as rocksdb-2
    settings: dict[str, str]  # of the state, which the stream keeps
    files: int  # in the old folder
    first_epoch: int  # the first epoch that the stream decides
    adopted: Adopted | None = None  # the result; null in a dry run


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that was adopted."""

    stream: str  # its name
    epoch: int  # the last epoch that the stream does not decide itself; 0: none
    first_epoch: int  # the first one that it decides
    files: int  # number of files that were copied
    bytes: int  # their size
    already: bool  # an earlier call had adopted it, and nothing was done


SHAPES = {"adopt": Adopt}

LastBatches = Annotated[
    list[str] | None,
    typer.Option(
        "--last-batch",
        metavar="SINK=written|not-written",
        help="Whether the target of this sink has the rows of the batch that was begun and not committed: all of them, "
        "or none. Required for each sink if there is such a batch. Repeatable.",
    ),
]


def adopt(
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="app.py:pipeline or package.module:pipeline.", show_default=False),
    ],
    stream: Annotated[
        str, typer.Option("--stream", metavar="NAME", help="The stream of the program that continues the query.")
    ],
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="PATH", help="The checkpointLocation of the query.")
    ],
    last_batch: LastBatches = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan without changing anything.")] = False,
    yes: Yes = False,
    take_over: TakeOver = False,
    as_json: Json = False,
) -> Answer:
    """Continue the query of a plain Spark checkpoint as a stream of a pipeline.

    Define a stream in the program with the source and the query of the old job, stop the old job, and adopt its
    checkpoint. The next run continues after the last committed batch, with its state. The old folder is not changed.
    The sources are compared by path and topic. Everything is checked before anything is written, and an interrupted
    adoption has no effect. The command starts Spark, so it needs Java.

    If the old job ended during a batch, plain Spark has no record of whether the rows of that batch are in the target.
    Look there, and answer for each sink with --last-batch. If only some of the rows are there, delete them first and
    answer not-written.

    [bold]Examples[/]

        holdfast adopt app.py --stream orders --checkpoint old/orders --dry-run
        holdfast adopt app.py --stream orders --checkpoint old/orders --yes
        holdfast adopt app.py --stream a --checkpoint old/a --last-batch files.a=written
    """
    answers = _answers(last_batch or [])
    found = find_target(target)
    from holdfast.spark.adopting import apply_adopt, plan_adopt, require_arguments  # PySpark may not be installed
    from holdfast.spark.session import borrowed, require_java, silence_spark

    if not dry_run:
        require_approval("adopt", yes=yes, as_json=as_json)  # before Spark takes its seconds to start
    require_java()
    silence_spark()
    with contextlib.ExitStack() as stack:
        if as_json:
            stack.enter_context(into_stderr())  # the program, and the JVM, may print something
        pipeline = pipeline_of(found)
        if not dry_run:
            _require_stopped(pipeline)
        require_arguments(pipeline, stream, checkpoint)
        stack.enter_context(_program_errors(found))
        spark = stack.enter_context(borrowed())
        plan = plan_adopt(pipeline, stream, checkpoint, last_batch=answers, spark=spark)
        done = None
        if not dry_run:
            approved("adopt", yes=yes, as_json=as_json, show=lambda console: _print_plan(console, plan))
            done = apply_adopt(pipeline, plan, spark=spark, take_over=take_over)
    return _answer(pipeline, plan, done, target)


def _require_stopped(pipeline: Pipeline) -> None:
    holder = None if pipeline.shared else holder_of(pipeline.repository)
    if holder is not None:
        raise Locked(what=f"the lease of pipeline {pipeline.name!r}", pid=holder.pid)


@contextlib.contextmanager
def _program_errors(target: Target) -> Iterator[None]:
    """Report an error in a function of a stream as one of the program."""
    try:
        yield
    except Exception as error:
        if is_users_error(error):
            raise as_program_error(target.program, error) from error
        raise


def _answer(pipeline: Pipeline, plan: AdoptPlan, done: Adoption | None, target: str) -> Answer:
    def print_it(console: Console) -> None:
        if done is None:
            _print_plan(console, plan)
            console.print("next: to carry out this plan, run the same command without --dry-run")
            return
        console.print(done.summary(), markup=False, soft_wrap=True)
        console.print(f"next: holdfast run {target}", markup=False, soft_wrap=True)

    result = msgspec.convert(plan.to_dict() | {"adopted": done and done.to_dict()}, Adopt)
    return Answer(result, print_it, repository=pipeline.repository.where)


def _answers(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given:
        sink, equals, answer = each.partition("=")
        if not equals or not sink:
            raise BadValue(what="--last-batch", value=each, expected="SINK=written or SINK=not-written")
        if found.get(sink, answer) != answer:
            raise BadValue(what="--last-batch", value=each, why=f"two different answers for sink {sink}")
        found[sink] = answer
    return found


def _print_plan(console: Console, plan: AdoptPlan) -> None:
    last = "none" if plan.committed is None else f"batch {plan.committed}"
    facts = [("checkpoint", plan.checkpoint), ("stream", f"{plan.pipeline}/{plan.stream}"), ("last commit", last)]
    if plan.in_doubt is not None:
        facts.append(("in doubt", f"batch {plan.in_doubt}"))
    if plan.state:
        facts.append(("state", ", ".join(plan.state)))
    fields(console, [*facts, ("first epoch", str(plan.first_epoch))], indent=0)
    rows = TableRows("source", "kind", "reads", "continues after")
    for each in plan.sources:
        rows.add(each.source, each.kind, each.place, each.position)
    rows.print(console)
    sinks = TableRows("sink", "what it gets")
    for name in plan.sinks:
        sinks.add(name, plan.given(name))
    sinks.print(console)
