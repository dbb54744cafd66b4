"""The command and its verbs."""

from __future__ import annotations

import typer

from holdfast.cli import checking, cursors, looking, pruning, running, versions

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

app = typer.Typer(
    name="holdfast",
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
running.add_to(app)
looking.add_to(app)
checking.add_to(app)
pruning.add_to(app)
cursors.add_to(app)
versions.add_to(app)
