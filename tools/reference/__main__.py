"""`python -m tools.reference` writes the pages. With `--check`, it only reports which ones are out of date."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.reference import api, cli, errors, protocols, shapes

FOLDER = Path(__file__).parents[2] / "docs/reference"
MAKERS = (cli, shapes, api, errors, protocols)


def pages() -> dict[str, str]:
    """Return every page by file name."""
    return {name: text.rstrip("\n") + "\n" for maker in MAKERS for name, text in maker.pages().items()}


def main() -> int:
    """Write or check the pages."""
    stale = []
    made = pages()
    existing = {str(each.relative_to(FOLDER)) for each in FOLDER.rglob("*") if each.is_file()}
    for name in sorted(made.keys() | existing):
        path = FOLDER / name
        if name in made and path.is_file() and path.read_text() == made[name]:
            continue
        stale.append(name)
        if "--check" in sys.argv:
            continue
        path.unlink(missing_ok=True)
        if name in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[name])
    if stale and "--check" in sys.argv:
        sys.stderr.write(f"out of date: {', '.join(stale)}. Next: make docs\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
