"""The documents of `/api` are those that the commands print with `--json`, with the same options."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.cli.verbs.verify import record_verdicts
from holdfast.formats.sealed_json import plain
from holdfast.repository.checkpoints import Checkpoints
from holdfast.verification import Grade, verify_all
from holdfast.web.api import document_of
from webfixture import Sample

DAY_S = 86_400

OPTIONS = (  # the address, the query, the same command
    ("ls", {"all": "1"}, ["ls", "--all"]),
    ("ls", {"last": "1"}, ["ls", "--last", "1"]),
    ("epochs/orders", {"slowest": "1", "last": "5"}, ["epochs", "orders", "--slowest", "--last", "5"]),
    ("epochs/orders", {"since": "7d"}, ["epochs", "orders", "--since", "7d"]),
    ("gaps", {"since": "2h"}, ["gaps", "--since", "2h"]),
    ("show", {"files": "1"}, ["show", "--files"]),
    ("show/2", {"files": "1"}, ["show", "2", "--files"]),
)


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    """Return a pipeline in which every option changes the document."""
    sample = Sample(tmp_path).healthy(60, 3)
    Checkpoints(sample.repository).abort(1, 1, 1, "it took too long")
    sample.gap("orders", 3)
    now_ms, sample.now_ms = sample.now_ms, sample.now_ms - DAY_S * 1000
    sample.gap("orders", 2)
    sample.now_ms = now_ms
    return sample


def printed(sample: Sample, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(CliRunner().invoke(app, [*words, "-r", str(sample.folder), "--json"]).stdout)
    return found


def served(sample: Sample, address: str, query: dict[str, str]) -> dict[str, Any]:
    document = document_of(str(sample.folder), address.split("/"), query)
    assert document is not None
    found: dict[str, Any] = json.loads(json.dumps(plain(document)))
    return found


@pytest.mark.parametrize(("address", "query", "words"), OPTIONS)
def test_an_option_of_the_api_is_that_of_the_command(
    sample: Sample, address: str, query: dict[str, str], words: list[str]
) -> None:
    found = served(sample, address, query)
    assert "error" not in found
    assert found == printed(sample, *words)
    assert found != served(sample, address, {}), "the option has an effect"


def test_an_option_with_a_bad_value_is_refused(sample: Sample) -> None:
    for address, query in (("epochs/orders", {"since": "x"}), ("gaps", {"since": "-1h"}), ("ls", {"last": "0"})):
        found = served(sample, address, query)
        assert found["error"]["kind"] == "BadValue"


def test_ls_and_show_have_the_last_recorded_verdict(sample: Sample) -> None:
    assert printed(sample, "show", "3")["result"]["last_verify"] is None
    lost = next((sample.folder / "objects").glob(f"*/{_own_file(sample, 2)}"))
    lost.unlink()
    record_verdicts(sample.repository, verify_all(sample.repository, grade=Grade.STRUCTURE))
    lines = printed(sample, "ls")["result"]["pipelines"][0]["checkpoints"]
    assert {each["checkpoint"]: each["last_verify"]["ok"] for each in lines} == {2: False, 3: True}
    verdict = printed(sample, "show", "2")["result"]["last_verify"]
    assert verdict == served(sample, "show/2", {})["result"]["last_verify"] == lines[0]["last_verify"]
    assert (verdict["checkpoint"], verdict["grade"]) == ("2", "structure")
    text = CliRunner().invoke(app, ["ls", "-r", str(sample.folder)], env={"COLUMNS": "200"}).stdout
    assert "LAST VERIFY" in text
    assert "unsound 0" in text
    text = CliRunner().invoke(app, ["show", "2", "-r", str(sample.folder)], env={"COLUMNS": "200"}).stdout
    assert "unsound 0" in text
    assert verdict["text"] in text


def _own_file(sample: Sample, number: int) -> str:
    """Return the digest of the file that only this checkpoint needs."""
    files = printed(sample, "show", str(number), "--files")["result"]["files"]["orders"]
    digest: str = files[-1]["sha256"]
    return digest
