"""The options of pipelines: each is written once, shown by `help`, and refused if misspelt."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadValue
from holdfast.spark import options
from holdfast.spark.options import PipelineOptions, SingleStreamOptions, StartOptions, StreamOptions
from holdfast.spark.pipeline import Pipeline, exactly_once

KINDS = [
    (PipelineOptions, options.PIPELINE_DEFAULTS),
    (StreamOptions, options.STREAM_DEFAULTS),
    (SingleStreamOptions, options.SINGLE_STREAM_DEFAULTS),
    (StartOptions, options.START_DEFAULTS),
]
TAKERS = [
    (Pipeline, PipelineOptions),
    (Pipeline.stream, StreamOptions),
    (Pipeline.start, StartOptions),
    (Pipeline.run, StartOptions),
    (exactly_once, SingleStreamOptions),
]


@pytest.mark.parametrize(("kind", "defaults"), KINDS)
def test_each_option_has_a_default(kind: type, defaults: dict[str, object]) -> None:
    assert defaults.keys() == kind.__annotations__.keys()


@pytest.mark.parametrize(("taker", "kind"), TAKERS)
def test_help_shows_each_option_by_its_name_type_and_default(taker: Any, kind: type) -> None:
    shown = inspect.signature(taker).parameters
    assert shown.keys() >= kind.__annotations__.keys()
    for name in kind.__annotations__:
        assert shown[name].annotation == kind.__annotations__[name].__forward_arg__
        assert shown[name].default is not inspect.Parameter.empty
    assert inspect.Parameter.VAR_KEYWORD not in {each.kind for each in shown.values()}


@pytest.mark.parametrize("method", [Pipeline.stream, Pipeline.start])
def test_the_docstring_explains_each_option(method: Any) -> None:
    text = inspect.getdoc(method) or ""
    missing = [name for name in inspect.signature(method).parameters if name not in ("self", "build")]
    assert [name for name in missing if f"`{name}`" not in text] == []


def test_a_misspelt_option_is_an_error_as_of_any_function(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'shard'"):
        Pipeline("p", tmp_path, shard=True)  # type: ignore[call-arg]
    made = Pipeline("p", tmp_path)
    for method in (made.start, made.run):
        with pytest.raises(TypeError, match="unexpected keyword argument 'checkpoints'"):
            method(checkpoints="1m")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="sinks"):
        made.stream(lambda _: None)  # type: ignore[call-arg]
    with pytest.raises(BadValue, match="accept"):
        made.start(accept="gap")  # type: ignore[arg-type]
