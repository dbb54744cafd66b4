"""The command and its verbs. A verb's module is imported when the verb is used, so that `ls` starts fast."""

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

HELP = """Exactly-once output and checkpoints for PySpark streaming pipelines.

Run and stop a pipeline, inspect, verify and compare its checkpoints, go back to one, and remove old ones. Commands \
that only read need neither Spark nor Java, and you can use them while the pipeline is running.

[bold]Get started[/]

    holdfast demo                    watch a pipeline survive repeated kills
    holdfast run app.py:pipeline     run a pipeline with a live view
    holdfast ls -r ./checkpoints     list its checkpoints
    holdfast verify                  check that the newest one can be restored
    holdfast serve ./checkpoints     see all of it on a web page

Exit codes: 0 success, 1 problems or differences were found, 2 usage error or failure.
"""

PANELS = {  # of the help, in its order; each verb is a module of `holdfast.cli.verbs`
    "Run a pipeline": ("run", "status", "top", "serve", "checkpoint", "savepoint", "stop", "cancel"),
    "Inspect and verify": (
        *("ls", "show", "verify", "diff", "log", "epochs", "runs"),
        *("gaps", "doubt", "doctor", "cursor"),
    ),
    "Go back, copy and convert": ("plan", "rewind", "asides", "fork", "backfill", "adopt", "eject"),
    "Free space": ("prune", "compact"),
    "Other": ("demo", "jar", "version"),
}
_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
VERBS = tuple(_PANEL_OF)
GROUPS = {
    "cursor": ("Inspect and reset durable cursors: the read positions of event-log consumers.", ("ls", "show", "reset"))
}


class PlainHelp:
    """Help without Python types: no `<bool>` after a flag, no `<str>` after an argument, no `{target}`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters, including `--help`."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            if each.param_type_name == "argument" or each.is_flag:
                each.display_type_rich = _no_type
        return found

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line."""
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
        if cmd_name not in VERBS:
            return None
        found = command_of(cmd_name)
        found.rich_help_panel = _PANEL_OF[cmd_name]
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb, or fail and suggest a similar one."""
        similar = get_close_matches(args[0], VERBS) if args and args[0] not in VERBS else []
        if similar:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {similar[0]!r}?")
        return super().resolve_command(ctx, args)


def verb_module(name: str) -> Any:
    """Import the module of a verb."""
    return importlib.import_module(f"holdfast.cli.verbs.{name}")


def command_of(name: str) -> Any:
    """Return a verb, or a group of verbs, as a typer command."""
    module = verb_module(name)
    parent = typer.Typer(rich_markup_mode="rich", context_settings=_SETTINGS)
    if name in GROUPS:
        text, inner = GROUPS[name]
        group = typer.Typer(
            cls=Group, rich_markup_mode="rich", no_args_is_help=True, help=text, context_settings=_SETTINGS
        )
        for each in inner:
            verb(group, _function(module, f"{name}_{each}"), Verb, within=name)
        parent.add_typer(group, name=name)
    else:
        verb(parent, _function(module, name), Verb)
    parent.callback()(_no_callback)  # without a callback, typer drops the name of a single verb
    return typer.main.get_group(parent).commands[name]


def _function(module: object, name: str) -> Callable[..., Answer]:
    found: Callable[..., Answer] = getattr(module, name)
    return found


def _no_callback() -> None:
    """Do nothing before a verb."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {holdfast.__version__}")
        raise typer.Exit


def _global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Accept the options that precede a verb."""


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
app.callback()(_global_options)


def run_app(typed: list[str]) -> int:
    """Run the command line and return the exit code. With `--json`, a usage error is a document too."""
    if "--json" not in typed:
        app(typed)  # exits the process
    try:
        return int(app(typed, standalone_mode=False) or 0)
    except (typer.Abort, EOFError):
        return Exit.FAILED
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's usage errors have it
            raise
        verb_typed = next((word for word in typed if word in VERBS), "")
        next_step = " ".join(["holdfast", *filter(None, [verb_typed]), "--help"])
        failure = ErrorResult("UsageError", error.format_message(), next_step)
        print_document(Envelope(command=verb_typed, exit=Exit.FAILED, error=failure), "")
        return Exit.FAILED
