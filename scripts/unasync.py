"""Writes the synchronous client from the async one; with `--check`, only says whether it is up to date.

Every file of `sandboxd/client/_async` becomes one of `sandboxd/client/_sync`. The rules are few, so the async source
keeps to names that they turn into the synchronous ones: `AsyncX` becomes `X`, and `async_x` becomes `x`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sandboxd.progress import SetupError, say
from scripts.verb import main

ROOT = Path(__file__).resolve().parents[1]

SOURCE = ROOT / "sandboxd/client/_async"
TARGET = ROOT / "sandboxd/client/_sync"
RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\basync (def|with|for)\b", r"\1"),
        (r"\bawait ", ""),
        (r"\b_async\b", "_sync"),
        (r"\basync_(?=[a-z])", ""),
        (r"\bAsync(?=[A-Z])", ""),
        (r"\basynccontextmanager\b", "contextmanager"),
        (r"\b__a(enter|exit|iter)__", r"__\1__"),
        (r"\baclose\b", "close"),
    )
]


def stale_files() -> dict[Path, str | None]:
    """Return every generated file that is not up to date, with the text it should have; None if it has no source."""
    wanted = {TARGET / path.name: translate(path) for path in SOURCE.glob("*.py")}
    found = {path: path.read_text(encoding="utf-8") for path in TARGET.glob("*.py")}
    return {path: wanted.get(path) for path in sorted(wanted | found) if wanted.get(path) != found.get(path)}


def _verb(words: Sequence[str]) -> int:
    stale = stale_files()
    if "--check" in words and stale:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        raise SetupError(
            f"cannot accept the synchronous client: {names} is not what its source gives", "run `make client`"
        )
    for path, text in stale.items():
        if text is None:
            path.unlink()
        else:
            path.write_text(text, encoding="utf-8")
        say(f"client: wrote {path.relative_to(ROOT)}")
    return 0


def translate(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    head = f"# Generated from {path.relative_to(ROOT)} by scripts/unasync.py; change that file and run `make client`.\n"
    name = str(TARGET / path.name)
    sorted_imports = _ruff(head + text, "check", "--select", "I", "--fix", "--quiet", "--stdin-filename", name, "-")
    return _ruff(sorted_imports, "format", "--quiet", "--stdin-filename", name, "-")


def _ruff(text: str, *words: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    return subprocess.run([ruff, *words], input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


if __name__ == "__main__":
    main(_verb)
