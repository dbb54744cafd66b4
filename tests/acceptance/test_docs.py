"""The docs tell the truth: their code runs, their links lead somewhere, their words are those of the code."""

import re
from pathlib import Path

import pytest

from sparkfixture import session

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target


def test_every_public_name_stands_in_the_docs() -> None:
    import holdfast

    text = "".join(page.read_text() for page in PAGES)
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
