"""`make tables`: token tables in .token-tables, in tiktoken's cache format, for tests and for hosts without a network.

They come from a package that carries them, through this machine's own pip configuration; the package is not installed.
Without them exact counts are not tested, so a failure is reported and is not an error.
"""

from __future__ import annotations

import re
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from memo.token_tables import EXACT_ENCODINGS, find_tables
from sandboxd.progress import SetupError, run_step, say
from scripts.verb import main

TABLES = Path(__file__).resolve().parent.parent / ".token-tables"
_PACKAGE = "litellm>=1.70"
_TABLE = re.compile(r"litellm/litellm_core_utils/tokenizers/([0-9a-f]{40})")


def extract(wheel: Path, target: Path) -> list[str]:
    """Copy the tables of a wheel; return the encodings that they make exact."""
    target.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if found := _TABLE.fullmatch(name):
                (target / found[1]).write_bytes(archive.read(name))
    return held(target)


def held(directory: Path) -> list[str]:
    """Return the encodings whose tables are here and undamaged."""
    return [encoding for encoding in EXACT_ENCODINGS if find_tables(encoding, directory) == directory]


def fetch(target: Path) -> list[str]:
    with tempfile.TemporaryDirectory() as directory:
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
        command = [*pip, "--only-binary", ":all:", "--dest", directory, _PACKAGE]
        run_step("fetching token tables", command, cannot="cannot fetch the package that carries token tables")
        (wheel,) = Path(directory).glob("*.whl")
        return extract(wheel, target)


def _verb(_: Sequence[str]) -> int:
    try:
        found = held(TABLES) or fetch(TABLES)
    except SetupError as error:
        say(f"without token tables, whose tests are skipped: {error}")
        return 0
    say(f"token tables: {', '.join(found)}")
    return 0


if __name__ == "__main__":
    main(_verb)
