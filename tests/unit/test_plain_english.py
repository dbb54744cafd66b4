"""Everything that a person reads is plain English: a list of words that other manuals do not use, and better ones."""

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Rule:
    """A pattern to avoid, better words, and a sentence in which the pattern is found."""

    pattern: str
    better: str
    example: str
    unless: str = "(?!)"  # a pattern on the same line that makes the words correct

    @property
    def spaced(self) -> str:
        """The pattern, with each space matching a line break too."""
        return self.pattern.replace(" ", r"\s+")


RULES = [
    Rule(
        r"\b(?:is|are|was|were) due\b",
        "expected …; … must be …",
        "a whole number is due",
        unless=r"checkpoint|interval|schedule|due (?:to|at|in)\b",
    ),
    Rule(r"\bwho(?:m|so)?ever\b", "name the component or the user", "whoever reads it"),
    Rule(r"\bwhatever\b", "any; all; name the thing; regardless of", "whatever fails here fails the checkpoint"),
    Rule(
        r"\b(?:nobody|somebody|anybody|everybody|someone else|no one)\b",
        "no reader; another process; name the component",
        "nobody has seen it",
    ),
    Rule(r"\bmend(?:s|ed|ing)?\b", "fix, repair", "mend the storage"),
    Rule(r"\banew\b", "again, from the beginning", "begin anew"),
    Rule(r"\bany more\b", "no longer; more", "it is not there any more"),
    Rule(r"\bever after\b", "from then on", "and ever after"),
    Rule(r"\bamiss\b", "wrong", "what is amiss"),
    Rule(r"\b(?:there|where)upon\b", "then", "whereupon it stops"),
    Rule(r"\bhush(?:es|ed|ing)?\b", "silence, suppress", "the log is hushed"),
    Rule(r"\bheed(?:s|ed|ing)?\b", "handle, respect, follow", "heed the flag"),
    Rule(r"\bshall\b", "must, is to", "it shall stop"),
    Rule(r"\bbears? (?:that|it|this|with)\b", "tolerates", "each sink bears that"),
    Rule(
        r"\b(?:tell|tells|told|telling) of\b|\b(?:is|are|be|was|were|been) told\b|\bsays? of\b",
        "report, notify, distinguish; receives; states",
        "the observer is told",
    ),
    Rule(
        r"\bof (?:the (?:user|caller)|Spark)'s(?= own\b| (?:is|are|that|which|and)\b|[.,;:)])",
        "user-supplied; a Spark …; Spark's …",
        "a clock of the user's.",
    ),
    Rule(r"\bof the user's\b", "user-supplied; the user's …", "a time limit of the user's choice"),
    Rule(r"\blet(?:s|ting)? go\b", "release, close, drop", "it lets go of the lock"),
    Rule(r"\b(?:give|gives|given|giving|gave) back\b", "return, release", "the device is given back"),
    Rule(r"\b(?:bring|brings|brought) on\b", "advance, cause", "it brings on the next epoch"),
    Rule(r"\btak(?:e|es|ing|en) care of\b", "handle, clean up", "it takes care of the files"),
    Rule(r"\bas it comes\b", "in order of arrival; unchanged; with default settings", "it is read as it comes"),
    Rule(r"\bby and by\b", "gradually, later", "they go by and by"),
    Rule(r"\bnot any longer\b", "no longer", "it is not any longer there"),
    Rule(r"\bthe one behind\b", "the next one", "the one behind it"),
    Rule(r"\bno (?:file|folder|number|name) of ours\b", "not a Holdfast file", "it is no file of ours"),
    Rule(r"\bnone such\b|\bfor ever\b", "none of this kind; forever", "it has none such"),
]
_CODE = re.compile(r"`[^`\n]+`|\{[^{}\n]*\}")  # names in prose, and the fields of templates


@dataclass(frozen=True)
class Hit:
    """Words to avoid at one place."""

    where: str
    line: int
    words: str
    better: str

    def __str__(self) -> str:
        return f"{self.where}:{self.line}: {' '.join(self.words.split())!r}: better: {self.better}"


@cache
def combined() -> re.Pattern[str]:
    """Return a fast pattern that finds every hit, and more: words may be separated by quotes and comment signs."""
    gap = r"\\W+(?:[rbfRBF]{1,2}\\W+)?"
    return re.compile("|".join(re.sub(" ", gap, rule.pattern) for rule in RULES), re.IGNORECASE)


def hits_in_text(text: str, where: str, first_line: int = 1) -> Iterator[Hit]:
    prose = _CODE.sub(lambda found: "¤" * len(found[0]), text)
    for rule in RULES:
        for found in re.finditer(rule.spaced, prose, re.IGNORECASE):
            start, end = prose.rfind("\n", 0, found.start()) + 1, prose.find("\n", found.end())
            if not re.search(rule.unless, prose[start : end if end >= 0 else None], re.IGNORECASE):
                line = first_line + prose.count("\n", 0, found.start())
                yield Hit(where, line, found[0], rule.better)


def prose_of_python(source: str) -> Iterator[tuple[int, str]]:
    """Yield each docstring, string and comment with its first line; neighbours of one kind are joined."""
    kind, first, last, parts = 0, 0, 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            continue
        if token.type != kind and parts:
            yield first, "".join(parts)
            parts = []
        kind = token.type
        if kind not in (tokenize.STRING, tokenize.COMMENT):
            continue
        first = first if parts else token.start[0]
        text = token.string.lstrip("# ") if kind == tokenize.COMMENT else token.string.lstrip("rbfRBF").strip("\"'")
        parts.append(("\n" * (token.start[0] - last) if parts else "") + text)
        last = token.end[0]


def hits_in_file(path: Path) -> list[Hit]:
    text = path.read_text()
    where = str(path.relative_to(ROOT))
    if not combined().search(text):
        return []
    if path.suffix != ".py":
        return list(hits_in_text(text, where))
    return [hit for line, prose in prose_of_python(text) for hit in hits_in_text(prose, where, line)]


def readable_files(area: str) -> list[Path]:
    place = ROOT / area
    if place.is_file():
        return [place]
    found = [path for path in place.rglob("*") if path.suffix in (".py", ".md", ".sh", ".sql", ".html", ".toml")]
    generated = ROOT / "docs" / "reference"  # from docstrings, which are read where they are written
    return sorted(path for path in found if generated not in path.parents)


SOURCES = sorted(
    f"src/holdfast/{each.name}"
    for each in (ROOT / "src" / "holdfast").iterdir()
    if each.suffix == ".py" or (each / "__init__.py").exists()
)
OTHERS = ["docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples", "bench", "tools", "Makefile"]


@pytest.mark.parametrize("area", SOURCES + [each for each in OTHERS if (ROOT / each).exists()])
def test_everything_that_a_person_reads_is_plain_english(area: str) -> None:
    hits = [hit for path in readable_files(area) for hit in hits_in_file(path)]
    assert not hits, "\n" + "\n".join(map(str, hits))


def test_the_sources_and_the_documentation_are_read() -> None:
    assert {"src/holdfast/errors", "src/holdfast/spark", "src/holdfast/policy.py"} <= set(SOURCES)
    assert len([path for area in SOURCES for path in readable_files(area)]) > 100
    assert len(readable_files("docs")) > 10


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.example)
def test_each_rule_finds_its_example_and_the_fast_pattern_does_too(rule: Rule) -> None:
    assert rule.better in [hit.better for hit in hits_in_text(rule.example, "x")]
    assert combined().search(rule.example)


BAD = '''"""Reads it; nobody
else writes. Whatever fails is raised."""

shall = 1
# the lock is given
# back at the end
def heed(whoever: int) -> str:
    """Return `anew` if {whoever} asks."""
    return f"a number is {whoever}" "x" + (
        "the storage is "  # a reason
        f"mended"
    ) + "an integer is " f"due"
'''


def test_docstrings_comments_and_strings_are_read_and_identifiers_are_not() -> None:
    assert combined().search(BAD)
    hits = [hit for line, prose in prose_of_python(BAD) for hit in hits_in_text(prose, "bad.py", line)]
    found = sorted((hit.line, " ".join(hit.words.split())) for hit in hits)
    assert found == [(1, "nobody"), (2, "Whatever"), (5, "given back"), (11, "mended"), (12, "is due")]
    assert str(hits[-1]) == "bad.py:12: 'is due': better: expected …; … must be …"


def test_good_sentences_pass() -> None:
    good = "A checkpoint is due every minute. Spark's own commit log is not edited. The failure is due to a timeout."
    assert list(hits_in_text(good, "x")) == []
