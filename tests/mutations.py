"""Damaged inputs for fuzz tests: seeded, so that a failure can be repeated.

The inputs are the same in every run, so that the test command does not depend on chance. `HOLDFAST_FUZZ_SEED=random`
tries others, and a number repeats a run that failed. `HOLDFAST_FUZZ_FACTOR` multiplies the number of inputs.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import secrets
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import Corrupt, HoldfastError, Storage, UnsupportedVersion

_SEED = os.environ.get("HOLDFAST_FUZZ_SEED") or "1"
SEED = secrets.randbelow(1 << 32) if _SEED == "random" else int(_SEED)
FACTOR = float(os.environ.get("HOLDFAST_FUZZ_FACTOR") or 1)
_ZEROS = b"0" * 64
_BYTES = (
    b"",
    b"\0",
    b"\xff",
    b"\n",
    b"{",
    b'"',
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xff" * 8,
    b"\0" * 600,
    b"[" * 3000,
    b"9" * 5000,
)
_TOKENS = (b"null", b"-1", b"1e999", b"NaN", b'""', b'"\\ud800"', b"[" * 5000, b"9" * 5000, b'{"a":1,"a":2}', b'"\xff"')
_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1 << 62, 1 << 64, 10**30, 1.5,
    "", "x", "..", "a/b", "\0", "-", "é" * 80, [], {}, [[]], {"a": None},
)  # fmt: skip
_TOKEN = re.compile(rb'-?\d+|"(?:[^"\\]|\\.)*"|true|false|null')


class Mutator:
    """Damages bytes and values."""

    def __init__(self, name: str, seed: int = SEED) -> None:
        self.random = random.Random(f"{seed} {name}")

    def damaged(self, samples: Sequence[bytes]) -> bytes:
        """Return a sample with one to three kinds of damage, or random bytes."""
        if self.random.random() < 0.05:
            return self.random.randbytes(self.random.choice((0, 1, 7, 64, 200, 1024)))
        data = self.random.choice(samples)
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            data = self._damage(data, samples)
        return data

    def _damage(self, data: bytes, samples: Sequence[bytes]) -> bytes:
        start, end = sorted((self._place(data), self._place(data)))
        strange = self.random.choice(_BYTES)
        kinds = [
            data[:start],
            _flipped(data, self.random.randrange(8 * len(data)) if data else 0),
            data[:start] + strange + data[start:],
            data[:start] + strange + data[end:],
            data[:end] + data[start:],
            data[:start] + self.random.choice(samples)[start:],
            self._token(data),
        ]
        return self.random.choice(kinds)

    def _place(self, data: bytes) -> int:
        return self.random.randrange(len(data) + 1)

    def _token(self, data: bytes) -> bytes:
        """Replace a token of JSON, where there is one."""
        tokens = list(_TOKEN.finditer(data[:100_000]))
        if not tokens:
            return data + b"\0"
        found = self.random.choice(tokens)
        return data[: found.start()] + self.random.choice(_TOKENS) + data[found.end() :]

    def changed(self, value: Any) -> Any:
        """Return a copy of a value of maps and lists with one thing changed, anywhere in it."""
        inside = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
        if not inside or self.random.random() < 0.15:
            return self.random.choice(_VALUES)
        place = self.random.choice(inside)
        copy = value.copy()
        match self.random.randrange(8):
            case 0:
                del copy[place]
            case 1 if isinstance(copy, dict):
                copy[str(self.random.choice(_VALUES))] = copy.pop(place)
            case 2 if isinstance(copy, list):
                copy.append(copy[place])
            case _:
                copy[place] = self.changed(copy[place])
        return copy

    def json(self, data: bytes) -> bytes:
        """Return JSON with one value changed, or one token replaced."""
        if self.random.random() < 0.4:
            return self._token(data)
        return json.dumps(self.changed(json.loads(data))).encode()

    def resealed(self, data: bytes) -> bytes:
        """Return a sealed text with a change in it, under a digest that is right."""
        fields = json.loads(data)
        del fields["digest"]
        plain = json.dumps(fields).encode()
        body = self._damage(plain, [plain]) if self.random.random() < 0.2 else self.json(plain)
        text = b'{"digest":"' + _ZEROS + b'",' + body.removeprefix(b"{")
        return text.replace(_ZEROS, hashlib.sha256(text).hexdigest().encode(), 1)


def _flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


class Untyped:
    """Collects what went wrong: one example of each kind."""

    def __init__(self) -> None:
        self.inputs = 0
        self.refused: Counter[str] = Counter()
        self._found: dict[tuple[str, ...], str] = {}

    def call(self, what: str, read: Callable[[bytes], object], data: bytes, *, names: str = "") -> None:
        """Read an input: a value, or a typed error that has a text and names what was read."""
        self.inputs += 1
        try:
            read(data)
        except HoldfastError as error:
            text = str(error)
            self.refused[type(error).__name__] += 1
            damage = isinstance(error, Corrupt | Storage | UnsupportedVersion)
            if "Next: " not in text or (damage and names not in text):
                self.note(what, f"{names!r} is not in the text", f"{type(error).__name__}: {text}", data)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = next(
                (each for each in reversed(traceback.extract_tb(error.__traceback__)) if "/holdfast/" in each.filename),
                last,
            )
            self.note(what, f"{type(error).__name__} at {where.filename}:{where.lineno}", str(error), data)

    def note(self, what: str, kind: str, text: str, data: object) -> None:
        """Keep an example."""
        self._found.setdefault((what, kind), f"{text[:300]}\n    input: {str(data)[:300]}")

    def check(self) -> None:
        """Fail if anything went wrong."""
        told = "\n".join(f"- {what}: {kind}: {text}" for (what, kind), text in self._found.items())
        assert not self._found, f"{len(self._found)} kinds of failure; HOLDFAST_FUZZ_SEED={SEED} repeats them:\n{told}"
