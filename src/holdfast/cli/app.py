"""The command and its verbs, each loaded when it is asked for: `ls` does not wait for what `verify` needs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import holdfast
from holdfast.cli.answers import Answer, Exit, print_document, verb
from holdfast.cli.results import Envelope, ErrorResult

HELP = """Checkpoints that hold, for PySpark streaming pipelines.

Run a pipeline, look at its checkpoints, verify and compare them, and keep its repository tidy. Whatever only looks \
needs no Spark and no Java, and may be used while the pipeline runs.

[bold]Begin with[/]

    holdfast demo                    see it kill itself, and lose nothing
    holdfast run app.py:pipeline     run a pipeline and watch it
    holdfast ls -r ./checkpoints     what there is
    holdfast verify                  whether the newest checkpoint holds

Exit codes: 0 good, 1 found something, 2 wrong use or failure.
"""

VERBS = {
    # verb -> where it lives; in the order of the help
    "run": "running",
    "ls": "looking",
    "show": "looking",
    "verify": "checking",
    "diff": "checking",
    "log": "looking",
    "gaps": "looking",
    "doubt": "looking",
    "prune": "pruning",
    "compact": "compacting",
    "cursor": "cursors",
    "demo": "demo",
    "version": "versions",
}
GROUPS = {"cursor": ("Look at durable cursors: where the readers of event logs stand.", ("ls", "show"))}


class PlainHelp:
    """Help that names what to type: no `<bool>` after a flag, no `<str>` after an argument, and no `{target}`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters, the option `--help` too."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            if each.param_type_name == "argument" or each.is_flag:
                each.display_type_rich = _no_type
        return found

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the line `Usage`."""
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [each.replace("{", "").replace("}", "") for each in pieces]


def _no_type(ctx: Any) -> None:
    del ctx


class Verb(PlainHelp, TyperCommand):
    """A verb."""


class Group(PlainHelp, TyperGroup):
    """A group of verbs."""


class Verbs(PlainHelp, TyperGroup):
    """The verbs by name."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all names, in the order of the help."""
        del ctx
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Load one verb."""
        del ctx
        return command_of(cmd_name) if cmd_name in VERBS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb that was typed, or say which one may have been meant."""
        near = get_close_matches(args[0], VERBS) if args and args[0] not in VERBS else []
        if near:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)


def command_of(name: str) -> Any:
    """Return a verb, or a group of verbs, as typer has it."""
    home = importlib.import_module(f"holdfast.cli.{VERBS[name]}")
    holding = typer.Typer(rich_markup_mode="rich", context_settings=_SETTINGS)
    if name in GROUPS:
        words, inner = GROUPS[name]
        group = typer.Typer(
            cls=Group, rich_markup_mode="rich", no_args_is_help=True, help=words, context_settings=_SETTINGS
        )
        for each in inner:
            verb(group, _function(home, f"{name}_{each}"), Verb, within=name)
        holding.add_typer(group, name=name)
    else:
        verb(holding, _function(home, name), Verb)
    holding.callback()(_none)  # a command of one verb would lose its name
    return typer.main.get_group(holding).commands[name]


def _function(home: object, name: str) -> Callable[..., Answer]:
    found: Callable[..., Answer] = getattr(home, name)
    return found


def _none() -> None:
    """Do nothing before a verb."""


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {holdfast.__version__}")
        raise typer.Exit


def _before(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version and exit.")
    ] = False,
) -> None:
    """Take what stands before a verb."""


_SETTINGS = {"help_option_names": ["--help", "-h"]}
app = typer.Typer(
    name="holdfast",
    cls=Verbs,
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings=_SETTINGS,
)
app.callback()(_before)


def run_app(typed: list[str]) -> int:
    """Run what was typed; return the exit code. Wrong use is a document too, where JSON is asked for."""
    if "--json" not in typed:
        app(typed)  # ends the process by itself
    try:
        return int(app(typed, standalone_mode=False) or 0)
    except (typer.Abort, EOFError):
        return Exit.FAILED
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's own way to say that it was used wrongly
            raise
        verb_typed = next((word for word in typed if word in VERBS), "")
        next_step = " ".join(["holdfast", *filter(None, [verb_typed]), "--help"])
        failure = ErrorResult("UsageError", error.format_message(), next_step)
        print_document(Envelope(command=verb_typed, exit=Exit.FAILED, error=failure), "")
        return Exit.FAILED
