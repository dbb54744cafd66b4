"""The docs tell the truth: their code runs, their links lead somewhere, their words are those of the code.

Blocks of a page run from top to bottom, in one folder:

- `python`: in one namespace. One whose first line is `# name.py` is written to that file instead, for a command to run.
- `console`: each line that begins with `$ ` is typed into a shell, and what it prints must be what the page shows. A
  `…` stands for anything within a line, and on a line of its own for any lines; blanks count as one. The command must
  succeed, unless the next one is `echo $?`.
- `sh`, and any other: not run. For what cannot be done here: installing, other machines.
"""

import functools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparkfixture import session

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
BY_HAND = [page for page in PAGES if ROOT / "docs/reference" not in page.parents]
COLUMNS = 120  # of the terminal that the commands of the pages are typed into
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w-]+\.py)\n")
_END = "\036"  # a byte that no command prints
_PATIENCE_S = 300


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_pages_with_code_are_found() -> None:
    assert sum(len(_BLOCK.findall(page.read_text())) for page in PAGES) >= 8


@pytest.mark.timeout(600)  # a page may start Spark twice, on a machine that has other things to do
@pytest.mark.parametrize("page", [page for page in PAGES if _BLOCK.search(page.read_text())], ids=named)
def test_the_code_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(page)


def run(page: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    text = page.read_text()
    blocks = [(block, block[1], block[2], _FILE.match(block[2])) for block in _BLOCK.finditer(text)]
    if any("Pipeline(" in code for _, kind, code, file in blocks if kind == "python" and not file):
        session()  # the one of all tests, so that `run` need not make and stop one
    for block, kind, code, file in blocks:
        if kind == "console":
            type_in(code)
        elif file:
            assert re.search(rf"(python|holdfast run) {file[1]}", text[block.end() :]), f"{file[1]} is never run"
            Path(file[1]).write_text(code)
        else:
            line = text.count("\n", 0, block.start(2))
            exec(compile("\n" * line + code, str(page), "exec"), names)  # noqa: S102 - our own docs


def type_in(block: str) -> None:
    """Type the commands of a block into one shell, and compare what each prints with what the block shows."""
    first, *shown = re.split(r"^\$ ", block, flags=re.MULTILINE)
    assert not first, "a console block begins with a command"
    commands = [part.partition("\n")[::2] for part in shown]
    script = "".join(f"{command}\n_code=$?; printf '{_END}%s{_END}' $_code; (exit $_code)\n" for command, _ in commands)
    next_ones = [command for command, _ in commands[1:]] + [""]
    for (command, expected), after, (printed, code) in zip(commands, next_ones, answers(script), strict=True):
        assert code == "0" or after == "echo $?", f"$ {command}\n{printed}\nended with {code}"
        assert pattern(expected).fullmatch(squeezed(printed)), f"$ {command}\n{printed}\nis not\n{expected}"


def answers(script: str) -> list[tuple[str, str]]:
    """Run a script in a shell of its own; return what came before each exit code, and the code."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1"}
    shell = subprocess.Popen(
        ["bash", "-c", script],  # noqa: S607 - whichever bash the reader has
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        printed, _ = shell.communicate(timeout=_PATIENCE_S)
    except BaseException:
        os.killpg(shell.pid, signal.SIGKILL)  # with whatever the page has started
        shell.communicate()
        raise
    parts = printed.split(_END)
    return list(zip(parts[0:-1:2], parts[1::2], strict=True))


def squeezed(text: str) -> str:
    return "".join(f"{' '.join(line.split())}\n" for line in text.strip().splitlines())


def pattern(expected: str) -> re.Pattern[str]:
    parts = []
    for line in squeezed(expected).splitlines():
        parts.append("(?:.*\\n)*?" if line == "…" else re.escape(line).replace("…", ".*?") + "\\n")
    return re.compile("".join(parts))


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a  b\n", "a b\n", True),
        ("a … c\n", "a b b c\n", True),
        ("a … c\n", "a b\nb c\n", False),
        ("a\n…\nc\n", "a\nb\nb\nc\n", True),
        ("a\n…\nc\n", "a\nc\n", True),
        ("a\n", "a\nb\n", False),
        ("a+\n", "aa\n", False),
        ("", "a\n", False),
    ],
)
def test_what_a_page_shows_is_compared_but_for_what_it_leaves_out(expected: str, printed: str, same: bool) -> None:
    assert bool(pattern(expected).fullmatch(squeezed(printed))) is same


@pytest.mark.parametrize(
    ("block", "why"),
    [("$ false\n", "ended with 1"), ("$ echo b\na\n", "is not"), ("$ false\n$ echo $?\n0\n", "is not")],
)
def test_a_command_that_does_something_else_than_its_page_says_is_told(block: str, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        type_in(block)


def test_commands_of_one_block_share_a_shell() -> None:
    type_in("$ sleep 60 &\n$ kill $!\n$ A=b; false\n$ echo $?\n1\n$ echo $A\nb\n")


def without_code(text: str) -> str:
    return re.sub(r"^( *)```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


@functools.cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page, by GitHub's rule: lower case, spaces as hyphens, no other signs; a second one gets -1."""
    text = without_code(page.read_text())
    found: set[str] = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#{1,6} +(.+?)(?: +#+)? *$", text, re.MULTILINE):
        words = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", heading)  # a link counts by its text
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        times = sum(1 for each in found if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", each))
        found.add(f"{slug}-{times}" if slug in found else slug)
    return found


def links(page: Path) -> list[str]:
    """Where the links and images of a page lead, inside this repository."""
    prose = re.sub(r"(?<!\[)`[^`\n]*`", "", without_code(page.read_text()))
    found = re.findall(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)", prose)
    found += re.findall(r"^\[[^]]+\]: +(\S+)", prose, re.MULTILINE)
    found += re.findall(r"<(?:img|source|a)[^>]*? (?:src|srcset|href)=\"([^\"]+)\"", prose)
    return [each for each in found if not re.match(r"[a-z]+:", each)]


def broken(page: Path) -> list[str]:
    wrong = []
    for link in links(page):
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        there = path.exists() and path.is_relative_to(ROOT)
        if not there or (anchor and (path.suffix != ".md" or anchor not in anchors(path))):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """To a file that is there, an image too, and to a heading that is in it."""
    assert broken(page) == []


def test_links_that_lead_nowhere_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "a.md"
    good = "[1](#a-heading-with-code) [2](#a-1) [3](b.md#x_yz) [4](b.md) ![5](c.png) [6](https://x.y/#z) [7](#a-2)"
    wrong = ["#a-heading", "#a-3", "b.md#x", "d.md", "d.png", "c.png#a", "../e.md", "f.svg"]
    shown = " ".join(f"[x]({each})" for each in wrong[:-1]) + f' <img alt="x" src="{wrong[-1]}">'
    (tmp_path / "b.md").write_text("# [X_y](c.png)z\n")
    (tmp_path / "c.png").write_bytes(b"")
    page.write_text(
        f"# A\n\n## A\n\n### A heading, with `code`!\n\n# A\n\n```sh\n# no heading ](x)\n```\n{good}\n{shown}\n"
    )
    assert broken(page) == wrong


def test_every_page_of_the_docs_can_be_reached_from_the_map() -> None:
    reached, rest = set(), [ROOT / "docs/index.md"]
    while rest:
        page = rest.pop()
        reached.add(page)
        found = [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
        rest += [each for each in found if each.suffix == ".md" and each not in reached and each.is_file()]
    assert [page for page in PAGES if ROOT / "docs" in page.parents and page not in reached] == []
    assert ROOT / "docs/index.md" in {(ROOT / link).resolve() for link in links(ROOT / "README.md")}


def test_every_public_name_stands_in_the_docs_that_are_written_by_hand() -> None:
    import holdfast

    text = "".join(page.read_text() for page in BY_HAND)
    missing = [name for name in holdfast.__all__ if name != "__version__" and not re.search(rf"\b{name}\b", text)]
    assert missing == []


def test_every_error_family_stands_in_the_concepts() -> None:
    from holdfast.errors import HoldfastError

    concepts = (ROOT / "docs/concepts.md").read_text()
    for family in HoldfastError.__subclasses__():
        assert f"`{family.__name__}`" in concepts


def test_every_word_of_the_code_stands_in_the_glossary() -> None:
    from holdfast import coordinator, epoch
    from holdfast.epoch import Verdict
    from holdfast.repository import Status, gaps
    from holdfast.spark.failures import Kind
    from holdfast.spark.spec import ACCEPTABLE
    from holdfast.verification import Grade

    text = (ROOT / "docs/glossary.md").read_text()
    words = [*Status, *Verdict, *Kind, *epoch.State, *coordinator.Phase, *(grade.word for grade in Grade)]
    words += [gaps.QUARANTINED, gaps.OFFSETS, gaps.REPLAY, *ACCEPTABLE]
    assert [word for word in words if not re.search(rf"\b{word}\b", text)] == []


def test_the_glossary_has_each_word_once_and_in_order() -> None:
    words = re.findall(r"^\*\*(.+?)\*\*:", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert words == sorted(set(words), key=str.lower)


def test_the_rooms_in_contributing_are_the_rooms_there_are() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = {path.stem if path.is_file() else path.name for path in (ROOT / "src/holdfast").iterdir()}
    rooms -= {"__init__", "__pycache__", "py"}
    for room in rooms:
        assert f"`{room}`" in text, room


def test_the_version_in_the_changelog_is_the_packages() -> None:
    import holdfast

    assert f"## {holdfast.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_diagram_is_drawn_from_the_protocols_table() -> None:
    from holdfast import coordinator, epoch

    assert f"```mermaid\n{epoch.diagram()}\n```" in (ROOT / "docs/pipelines.md").read_text()
    assert f"```mermaid\n{coordinator.diagram()}\n```" in (ROOT / "docs/checkpoints.md").read_text()
