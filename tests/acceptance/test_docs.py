"""The docs tell the truth: their code runs, their links lead somewhere, their words are those of the code."""

import functools
import re
from pathlib import Path

import pytest

from sparkfixture import session

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
BY_HAND = [page for page in PAGES if ROOT / "docs/reference" not in page.parents]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_pages_with_code_are_found() -> None:
    assert sum(len(_BLOCK.findall(page.read_text())) for page in PAGES) >= 8


@pytest.mark.parametrize(
    "page", [page for page in PAGES if _BLOCK.search(page.read_text())], ids=lambda page: page.name
)
def test_the_code_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if "Pipeline(" in page.read_text():
        session()  # the one of all tests, so that `run` need not make and stop one
    run(page)
    if page.name == "README.md":
        assert capsys.readouterr().out == "stopped\n0 order:1 b'paid'\n1 order:2 b'open'\n"
        run(page)
        assert capsys.readouterr().out == "stopped\n2 order:1 b'paid'\n3 order:2 b'open'\n"


def run(page: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    text = page.read_text()
    for block in _BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], str(page), "exec"), names)  # noqa: S102 - our own docs


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
