"""The reference is complete and true: whatever the code has stands in it, and what it says, the code does."""

import functools
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

import holdfast
from fabricated import Fabricated, flip
from holdfast.cli.app import VERBS, app
from holdfast.cli.results import Envelope
from holdfast.epoch import Attempt, Decision, Verdict
from holdfast.errors import HoldfastError
from holdfast.eventlog import DurableCursor, Region
from holdfast.repository import Decisions, Gaps, History, LocalRepository
from holdfast.repository.activity import RECOVERED, Activity, ActivityEvent
from support import events, new_log
from tools.reference import __main__ as reference
from tools.reference.shapes import shapes

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
ELSEWHERE = {
    "run",
    "demo",
    "compact",
    "rewind",
    "asides",
    "backfill",
    "plan",
    "adopt",
    "serve",
}  # checked in their own tests


pages = functools.cache(reference.pages)


def page(name: str) -> str:
    return (REFERENCE / name).read_text()


@functools.cache
def library() -> str:
    return "".join(each.read_text() for each in (REFERENCE / "api").glob("*.md"))


def section(text: str, heading: str) -> str:
    """The text from a heading to the next one that is as high."""
    level = heading.split(" ", 1)[0]
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{len(level)}}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


# --- up to date ------------------------------------------------------------------------------------------------------


def test_every_page_is_what_the_code_says_today() -> None:
    """Where this fails: `make docs`, and read what has changed."""
    made = pages()
    assert made.keys() == {str(each.relative_to(REFERENCE)) for each in REFERENCE.rglob("*") if each.is_file()}
    for name, text in made.items():
        assert text == page(name), name


def test_the_pages_do_not_depend_on_the_terminal(tmp_path: Path) -> None:
    narrow = {**os.environ, "COLUMNS": "30", "TERM": "xterm-256color", "FORCE_COLOR": "1", "HOLDFAST_REPO": "/x"}
    command = [sys.executable, "-m", "tools.reference", "--check"]
    done = subprocess.run(command, cwd=ROOT, env=narrow, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for each in REFERENCE.rglob("*.*"):
        assert "\x1b" not in each.read_text()
        assert not re.search(r" at 0x[0-9a-f]+|/tmp/|/home/|/root/", each.read_text()), each


def test_a_page_that_is_out_of_date_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    monkeypatch.setattr(reference, "pages", pages)  # once is enough: they take a second
    monkeypatch.setattr(sys, "argv", ["reference"])
    assert reference.main() == 0
    (tmp_path / "cli.md").write_text("# Something else\n")
    (tmp_path / "old.md").write_text("# A page that nobody makes any more\n")
    monkeypatch.setattr(sys, "argv", ["reference", "--check"])
    assert reference.main() == 1
    assert capsys.readouterr().err == "out of date: cli.md, old.md. Next: make docs\n"
    monkeypatch.setattr(sys, "argv", ["reference"])
    assert reference.main() == 0
    assert (tmp_path / "cli.md").read_text() == page("cli.md")
    assert not (tmp_path / "old.md").exists()


# --- complete --------------------------------------------------------------------------------------------------------


def commands(group: Any = None, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every verb, found by walking the command itself."""
    group = group or typer.main.get_command(app)
    context = group.context_class(group, info_name="holdfast")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


@functools.cache
def verbs() -> dict[str, Any]:
    return dict(commands())


@pytest.mark.parametrize(("verb", "command"), list(commands()), ids=lambda each: each if isinstance(each, str) else "")
def test_every_verb_stands_there_with_all_that_it_takes(verb: str, command: Any) -> None:
    text = section(page("cli.md"), f"## holdfast {verb}")
    assert command.help.split("\n")[0] in text
    for each in command.params:
        words = text.replace("&lt;", "<")
        assert each.help, each.name
        assert each.help in words
        for name in [*each.opts, *each.secondary_opts] if each.opts[0].startswith("-") else []:
            assert re.search(rf"`{name}(?: [^`]+)?`", text), name
        if each.envvar:
            assert f"`{each.envvar}`" in text
        if each.default not in (None, False):
            assert f"`{getattr(each.default, 'value', each.default)}`" in text
    assert f"```sh\nholdfast {verb}" in text  # an example
    if verb in shapes():
        assert f"json.md#holdfast-{verb.replace(' ', '-')}" in text
        assert section(page("json.md"), f"## holdfast {verb}")


def test_every_field_of_every_document_says_what_it_means() -> None:
    """Where this fails: write a comment behind the field, in the source."""
    fields = re.findall(r"^\| `(\w+)` \| ([^|]+) \|(?: ([^|]*) \|)?$", page("json.md"), re.MULTILINE)
    assert len(fields) > 80
    assert [name for name, kind, meaning in fields if not meaning and "](#" not in kind] == []


def kinds(error: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
    yield error
    for each in error.__subclasses__():
        yield from kinds(each)


@pytest.mark.parametrize("error", [each for each in kinds(HoldfastError) if each.__module__ == "holdfast.errors"])
def test_every_error_stands_there_with_its_facts(error: type[HoldfastError]) -> None:
    leaf = error is not HoldfastError and HoldfastError not in error.__bases__
    text = section(page("errors.md"), f"##{'#' * leaf} {error.__name__}")
    assert (inspect.getdoc(error) or "").split("\n")[0] in text
    if leaf:
        for fact in inspect.signature(error).parameters:
            assert f"`{fact}: " in text, fact
        assert "- Text: `" in text
        assert re.search(r"^- Next: `[^`]{10}", text, re.MULTILINE)


def test_next_steps_that_a_property_chooses_are_texts_and_not_code() -> None:
    """The texts are read from the source of the property, in which other strings are compared with values."""
    text = section(page("errors.md"), "### NotRunning")
    steps = "`…; or use its last checkpoint, which holdfast ls lists`; or `…, or list its checkpoints: holdfast ls`"
    start = "start it: holdfast run app.py:pipeline"
    assert f"- Next: `{start}`; or {steps}; or `nothing needs to be done`.\n" in text
    assert not re.search(r"^- Next:.*[^.\n]$", page("errors.md"), re.MULTILINE), "a step goes over several lines"


def test_the_exit_codes_of_errors_are_those_that_the_command_ends_with() -> None:
    for family in HoldfastError.__subclasses__():
        if family.__module__ == "holdfast.errors":
            codes = "1; for `run`: 2" if family.__name__ == "Corrupt" else "2"
            assert f"of the command: {codes}." in section(page("errors.md"), f"## {family.__name__}")


PUBLIC = {name: "holdfast" for names in holdfast._HOMES.values() for name in names}
for module in holdfast._MODULES:
    if module != "errors":
        PUBLIC = dict.fromkeys(getattr(holdfast, module).__all__, f"holdfast.{module}") | PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_stands_there_with_its_methods(name: str) -> None:
    thing = getattr(importlib.import_module(PUBLIC[name]), name)
    link = rf"\[`{name}`\]\((api/\w+|errors)\.md#{name.lower()}\)"
    assert re.search(rf"^\| {link} \| `{PUBLIC[name]}` \| \S", page("api.md"), re.MULTILINE)
    if thing is HoldfastError:
        return
    text = section(library(), f"### {name}")
    if not inspect.isclass(thing):
        return
    assert (inspect.getdoc(thing) or "").split("\n")[0].split("`")[0] in text
    for each, value in vars(thing).items():
        if not each.startswith("_") and inspect.isfunction(value):
            theirs = [base for base in PUBLIC if f"#### {base}.{each}\n" in library() and f"`{base}`" in text]
            assert f"#### {name}.{each}\n" in text or theirs, each


def test_every_state_and_every_point_stands_there() -> None:
    from holdfast import coordinator, epoch, pruning

    text = page("protocols.md")
    for protocol in (epoch, coordinator):
        assert f"```mermaid\n{protocol.diagram()}\n```" in text
        for (state, move), to in protocol.MOVES.items():
            assert re.search(rf"^\| {move} \| .*\b{state} → {to}\b", text, re.MULTILINE)
        for point, left in protocol.POINTS.items():
            assert f"| {point} | {left} |" in text
    for state, (prepared, visible) in epoch.HOLDS.items():
        assert re.search(rf"^\| {state} \| [^|]+ \| {prepared} \| {visible} \|$", text, re.MULTILINE)
    for point, left in pruning.POINTS.items():
        assert f"| {point} | {left} |" in text


# --- true ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline's repository in which every verb finds something."""
    folder = tmp_path_factory.mktemp("reference")
    made = Fabricated(LocalRepository(folder / "checkpoints/orders"))
    made.take("a", "b")
    made.take("a", "c", "d")
    made.take("e", savepoint="before-upgrade")
    made.checkpoints.abort(1, made.checkpoints.claim(1, 1), 1, "it took too long", ["orders"])
    made.checkpoints.claim(1, 1)
    damaged = made.take("f")
    flip(made.repository, made.checkpoints.find(damaged.checkpoint_id)[0].manifest)
    made.repository.put("timelines/1/streams/orders/spark/metadata", b'{"id":"x"}')
    made.repository.put("timelines/1/streams/orders/spark/offsets/0", b'v1\n{}\n{"orders":{"0":5}}')
    made.repository.put("timelines/1/streams/orders/spark/commits/0", b"v1\n{}")
    attempt = Attempt(stream="orders", timeline=1, epoch=3, attempt=1)
    facts = {"sinks": {"files": {"rows": 7}}, "decided_at_ms": 1000}
    Decisions(made.repository).close(Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1, facts=facts))
    Gaps(made.repository).add("orders", 1, 2, kind="quarantined", why="poison", facts={"rows": 3})
    History(made.repository).add("upgrade", "a new version", {"from": 1})
    steps = {"build": 0.25, "compare": 0.5}
    recovered = ActivityEvent(at_ms=2000, lease=1, kind=RECOVERED, stream="orders", seconds=0.75, steps=steps)
    Activity(made.repository).add_event(recovered)
    log = new_log(folder / "orders.log", events("order:1", "order:2"))
    with DurableCursor(made.repository, "billing", log, Region()) as cursor:
        cursor.poll()
        cursor.commit()
    return folder / "checkpoints/orders"


DOCUMENTS = [  # what is typed, the exit code, and what must be in it for the look to be worth something
    ("ls --all", 1, "pipelines.0.checkpoints.3.why"),
    ("show 2", 0, "manifest.streams.orders"),
    ("show before-upgrade --files", 0, "files.orders.0.sha256"),
    ("verify 2", 0, "verifications.0.bytes"),
    ("verify --all --quick", 1, "verifications.3.findings.0.code"),
    ("diff 1 2", 1, "difference.streams.orders.files.added"),
    ("diff 2 2", 0, "same"),
    ("log", 0, "entries.0.facts.from"),
    ("gaps", 1, "gaps.0.facts.rows"),
    ("status", 1, "pipelines.0.problems.0.next"),
    ("top", 1, "pipelines.0.streams.0.epoch"),
    ("epochs orders", 0, "epochs.0.decided_at_ms"),
    ("runs", 0, "runs.0.recoveries.0.steps.build"),
    ("doubt", 1, "doubts.0.sinks.files"),
    ("prune --last 1 --dry-run", 0, "drops.0"),
    ("cursor ls", 0, "cursors.0.position"),
    ("cursor show billing --log {log}", 0, "cursor.behind"),
    ("cursor reset billing --log {log} --to 0 --dry-run", 0, "after"),
    ("doctor {repository}/timelines/1/streams/orders/spark", 0, "findings.0.next"),
    ("eject {repository} --stream orders --to plain", 2, ""),  # its epoch is in doubt
    ("version", 0, "holdfast"),
    ("jar", 0, "submit"),
    ("stop", 0, "was_running"),  # no driver runs: test_control_command.py has one
    ("checkpoint", 2, ""),
    ("savepoint now", 2, ""),
    ("cancel", 2, ""),
    ("show 99", 2, ""),
    ("fork --from 2 --as trial", 0, "epochs.orders"),
    ("prune --last 1", 2, ""),
    ("prune --last 1 --yes", 0, "pruned.dropped.0"),  # the last: it changes what the others look at
]


@pytest.mark.parametrize(("typed", "code", "inside"), DOCUMENTS, ids=[each[0] for each in DOCUMENTS])
def test_what_json_prints_has_the_shape_that_is_written_down(
    typed: str, code: int, inside: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = typed.format(log=repository.parents[1] / "orders.log", repository=repository).split()
    where = [] if typed.startswith(("version", "jar", "doctor", "eject")) else ["--repo", str(repository)]
    with pytest.raises(SystemExit) as ended:
        app([*words, *where, "--json"])
    printed = msgspec.json.decode(capsys.readouterr().out)
    assert (ended.value.code, printed["exit"], printed["format"]) == (code, code, 1)
    assert msgspec.to_builtins(msgspec.convert(printed, Envelope, strict=True)) == printed  # no field is unknown
    if not inside:
        assert "result" not in printed
        return
    shape = shapes()[printed["command"]]
    taken = msgspec.json.decode(msgspec.json.encode(printed["result"]), type=shape, strict=True)
    assert msgspec.json.decode(msgspec.json.encode(taken)) == printed["result"]
    assert matches(printed["result"], {"$ref": f"#/$defs/{shape.__name__}"}) == []
    found = printed["result"]
    for step in inside.split("."):
        found = found[int(step)] if isinstance(found, list) else found[step]
    assert found is not None


def test_every_verb_has_a_document_that_is_checked() -> None:
    """Where this fails: add a line to `DOCUMENTS`."""
    checked = {verb for verb, _ in commands() for typed, _, _ in DOCUMENTS if f"{typed} ".startswith(f"{verb} ")}
    assert verbs().keys() - ELSEWHERE == checked - ELSEWHERE
    assert shapes().keys() | ELSEWHERE == verbs().keys() | ELSEWHERE


@functools.cache
def schema() -> dict[str, Any]:
    return dict(msgspec.json.decode(page("schema.json")))


def matches(value: Any, kind: dict[str, Any], where: str = "") -> list[str]:
    """Say what of a value does not fit the schema; unknown fields are told too, though a schema allows them."""
    if "$ref" in kind:
        return matches(value, schema()["$defs"][kind["$ref"].rpartition("/")[2]], where)
    if "anyOf" in kind:
        return min((matches(value, each, where) for each in kind["anyOf"]), key=len)
    types = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
    wanted = types.get(kind.get("type", ""), (int, float) if kind.get("type") == "number" else object)
    if not isinstance(value, wanted) or value not in kind.get("enum", [value]) or (value is True and wanted is int):
        return [f"{where}: {value!r} is not {kind}"]
    if isinstance(value, list):
        inner = [(str(at), each, kind.get("items", {})) for at, each in enumerate(value)]
    elif isinstance(value, dict) and "properties" in kind:
        wrong = value.keys() ^ kind["properties"].keys()
        if wrong - (kind["properties"].keys() - set(kind.get("required", ()))):
            return [f"{where}: {sorted(wrong)}"]
        inner = [(name, each, kind["properties"][name]) for name, each in value.items()]
    elif isinstance(value, dict):
        extra = kind.get("additionalProperties", {})
        inner = [(name, each, extra if isinstance(extra, dict) else {}) for name, each in value.items()]
    else:
        return []
    return [each for name, part, its in inner for each in matches(part, its, f"{where}.{name}")]


# --- no page names what is not there ---------------------------------------------------------------------------------


def typed_commands(text: str) -> Iterator[str]:
    """Every `holdfast …` that a page shows: in blocks for a shell, and between backticks."""
    for kind, block in re.findall(r"^```(sh|bash|console|shell)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if kind == "console" and not line.startswith("$ "):
                continue  # what a command printed
            alone = re.sub(r"\$\(([^()]*)\)", r" ; \1 ; ", line.partition(" #")[0])  # a command within another one
            for part in re.split(r"[|;&\"]+|\$\(", alone):
                found = re.match(r"\s*(?:\$ )?(?:\w+=\S+ )*(?:\S*python3? -m |\S*bin/)?holdfast(?: (.*))?$", part)
                if found:
                    yield found[1] or ""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`holdfast ([^`]+)`", prose)


def wrong_in(typed: str) -> str | None:
    """Say what of a command line is not there."""
    words = shlex.split(typed.partition(" -- ")[0].replace("…", "").replace("...", ""))
    known = verbs()
    options = {name for each in typer.main.get_command(app).params for name in each.opts} | {"--help", "-h"}
    if words and not words[0].startswith("-"):
        verb = next((each for each in (" ".join(words[:2]), words[0]) if each in known), "")
        if words[0] in VERBS and not verb:
            return None if len(words) == 1 or words[1].startswith("-") else f"no verb {words[:2]}"
        if not verb:
            return f"no verb {words[0]!r}"
        options = {name for each in known[verb].params for name in (*each.opts, *each.secondary_opts)} | {
            "--help",
            "-h",
        }
    used = [word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)]
    return next((f"no option {word} in {typed!r}" for word in used if word not in options), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_names_a_verb_or_an_option_that_is_not_there(page: Path) -> None:
    assert [wrong for typed in typed_commands(page.read_text()) if (wrong := wrong_in(typed))] == []


def test_commands_are_found_and_wrong_ones_are_told() -> None:
    assert sum(1 for page in PAGES for _ in typed_commands(page.read_text())) > 15
    shown = "```sh\nX=1 holdfast ls | head  # ok\ncd x && .venv/bin/holdfast sho 1\n```\n"
    text = f"{shown}`holdfast ls --lst 3` `holdfast …`\n"
    assert list(typed_commands(text)) == ["ls ", "sho 1", "ls --lst 3", "…"]
    assert [wrong_in(each) for each in ["ls -n 3 --json", "cursor ls", "cursor", "--help", ""]] == [None] * 5
    assert all(wrong_in(each) for each in ["sho 1", "ls --lst 3", "cursor lst", "--halp", "cursor ls --files"])
