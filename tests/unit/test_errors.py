import copy
import dataclasses
import inspect
import pickle
import re

import pytest

from holdfast import errors
from holdfast.errors import BadValue, HoldfastError

LEAVES = [
    each
    for _, each in inspect.getmembers(errors, inspect.isclass)
    if issubclass(each, HoldfastError) and not each.__subclasses__()
]


def example(kind: type[HoldfastError]) -> HoldfastError:
    values = {
        "str": "x",
        "int": 3,
        "float": 1.5,
        "bool": True,
        "object": "x",
        "str | None": None,
        "int | None": 4,
        "int | str": 5,
        "tuple[str, ...]": ("a", "b"),
    }
    return kind(**{each.name: values[str(each.type)] for each in dataclasses.fields(kind)})


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_each_error_says_what_is_wrong_and_ends_with_the_next_step(kind: type[HoldfastError]) -> None:
    error = example(kind)
    text = str(error)
    assert re.fullmatch(r"\S.*\. Next: \S.*\.", text, re.DOTALL), text
    assert "{" not in text
    for each in dataclasses.fields(kind):
        assert hasattr(error, each.name)


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_each_error_survives_pickling_with_its_facts(kind: type[HoldfastError]) -> None:
    error = example(kind)
    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - our own bytes
        assert type(back) is kind
        assert vars(back) == vars(error)
        assert str(back) == str(error)


def test_the_tree_at_the_top_of_the_file_is_the_tree() -> None:
    drawn = re.findall(r"^\s+(?:[│ ]*[├└]── )?(\w+)", str(errors.__doc__).split("\n\n")[1], re.MULTILINE)
    real = [each.__name__ for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, HoldfastError)]
    assert sorted(drawn) == sorted(real)


def test_families_are_what_python_users_catch() -> None:
    assert issubclass(errors.BadName, ValueError)
    assert issubclass(errors.NotFound, LookupError)
    assert issubclass(errors.MissingExtra, ImportError)


def test_the_next_step_names_the_program_of_the_user() -> None:
    error = errors.SinkBehind(stream="orders", sink="table", holds=1, decided=3)
    assert "holdfast rewind app.py:pipeline --to latest" in str(error)
    error.name_program("shop.py")
    for text in (str(error), error.what_next, str(pickle.loads(pickle.dumps(error)))):  # noqa: S301 - our own bytes
        assert "holdfast rewind shop.py --to latest" in text
        assert "app.py:pipeline" not in text


def test_a_text_that_ends_with_a_mark_gets_no_full_stop() -> None:
    error = BadValue(what="x", value=1, why="is it one?", do="pass another!")
    assert str(error).endswith("is it one? Next: pass another!")
