"""The licences of the installed packages: none may be copyleft, and none may be unknown.

Reads what each distribution in this environment declares: License-Expression, License and the licence classifiers. The
development environment contains every package of the run environment, so one check covers both. It does not interpret
"OR": a package that offers a choice is listed in REVIEWED with the licence we use. `make lint` runs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from sandboxd.progress import SetupError, say
from scripts.verb import main

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ("requirements.txt", "requirements-dev.txt")

# Licences that bind the programs that use the package. MPL-2.0 (certifi, hypothesis, pathspec) is not one of them: it
# binds only its own files, and we change none of those.
COPYLEFT = re.compile(
    r"\b[AL]?GPL|General Public Licen[cs]e|Affero|\bSSPL|Server Side Public|\bEUPL|European Union Public"
    r"|\bCC[- ]BY[A-Z-]*-SA|\bOSL-|Open Software License|\bCeCILL",
    re.IGNORECASE,
)

REVIEWED: Mapping[str, str] = {}
"""Packages whose metadata names a copyleft licence or none, by normalised name, each with the reason it is allowed."""


def normalised(name: str) -> str:
    """Return a package name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(distribution: Distribution) -> list[str]:
    """Return every statement about the licence in the metadata, except those without information."""
    metadata = distribution.metadata
    classifiers = [item for item in metadata.get_all("Classifier") or [] if item.startswith("License ::")]
    fields = [*(metadata.get_all("License-Expression") or []), *(metadata.get_all("License") or [])]
    silent = {"", "UNKNOWN", "License :: OSI Approved"}
    return [text for text in (field.strip() for field in [*fields, *classifiers]) if text not in silent]


def problems(installed: Iterable[Distribution], reviewed: Mapping[str, str] = REVIEWED) -> list[str]:
    """Return one sentence for each distribution whose licence is not accepted."""
    found = set()
    for distribution in installed:
        name = normalised(distribution.name)
        if name in reviewed:
            continue
        statements = declared(distribution)
        if not statements:
            found.add(f"{name} {distribution.version} declares no licence")
        for text in statements:
            if match := COPYLEFT.search(text):
                line = text[: match.end()].splitlines()[-1] + text[match.end() :].partition("\n")[0]
                found.add(f"{name} {distribution.version} declares a copyleft licence: {line.strip()[:120]}")
    return sorted(found)


def missing(requirements: str, installed: Iterable[Distribution]) -> list[str]:
    """Return the pinned packages that are not installed, and so are not checked."""
    pinned = [line.partition("==")[0] for line in requirements.splitlines() if "==" in line]
    present = {normalised(distribution.name) for distribution in installed}
    return [name for name in pinned if normalised(name) not in present]


def _verb(_: Sequence[str]) -> int:
    installed = list(distributions())
    for file in REQUIREMENTS:
        if absent := missing((ROOT / file).read_text(), installed):
            raise SetupError(
                f"cannot check the licences of {file}: {', '.join(absent)} not installed", "run `make environment-dev`"
            )
    if found := problems(installed):
        raise SetupError(
            "cannot accept the installed licences:\n  " + "\n  ".join(found),
            "replace the package; if its metadata misleads, add it to REVIEWED in scripts/licences.py with the reason",
        )
    say(f"licences: {len({distribution.name for distribution in installed})} packages, none copyleft")
    return 0


if __name__ == "__main__":
    main(_verb)
