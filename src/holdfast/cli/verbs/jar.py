"""`holdfast jar`."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Console

from holdfast.cli.answers import Answer
from holdfast.cli.options import Json


class JarFound(msgspec.Struct, frozen=True, kw_only=True):
    """The jar with the Java classes of Holdfast, and how `spark-submit` gets it."""

    path: str  # on this machine
    submit: str  # arguments of spark-submit: the jar, and the packages of Hadoop's connector for S3


SHAPES = {"jar": JarFound}
Submit = Annotated[bool, typer.Option("--submit", help="Print all arguments that spark-submit needs for a root on S3.")]


def jar(submit: Submit = False, as_json: Json = False) -> Answer:
    """Print the path of the jar with the Java classes of Holdfast.

    A session that Holdfast creates has the jar already. `spark-submit` starts Java before the program runs, so there it
    must be named on the command line. Spark then sends it to all executors. With --submit, the packages of Hadoop's
    connector for S3 are named too, in the version of the installed Spark; Spark downloads them.

    [bold]Example[/]

        holdfast jar
        holdfast jar --submit
    """
    from holdfast.spark.localfiles import JAR
    from holdfast.spark.shipping import installed_hadoop, submit_arguments

    found = JarFound(path=str(JAR), submit=submit_arguments(installed_hadoop()))

    def print_it(console: Console) -> None:
        console.print(found.submit if submit else found.path, markup=False, highlight=False, soft_wrap=True)

    return Answer(found, print_it)
