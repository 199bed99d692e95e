"""Escape probes: every way out of a container, tried from inside. Standard library only, Python 3.9 or newer.

Prints {probe: {"ok": bool, "detail": str}} as JSON; ok means that the door is shut. It does no harm where a door
is open: calls use arguments that the kernel rejects only after it has checked permissions, and every write is undone.
Texts that must not be found are passed reversed, so that the search does not find its own arguments.
"""

from __future__ import annotations

import argparse
import json
import sys

import files
import identity
import kernel
import outside
from doors import PROBES, Outcome, probe, sees_host

ROOMS = (kernel, identity, files, outside)  # importing a module registers its probes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backwards", action="append", default=[], help="a text, backwards, that must not be in sight")
    hidden = [text[::-1] for text in parser.parse_args().backwards]

    @probe("no secret and no name from outside is in sight")
    def search() -> Outcome:
        found = sorted({where for where, text in outside.texts_in_sight() for secret in hidden if secret in text})
        return not found, " ".join(found[:5])

    report = {}
    if sees_host():
        PROBES.clear()
        PROBES["only our own processes are visible"] = lambda: (False, "the host's are; nothing else was tried")
    for name, attempt in PROBES.items():
        try:
            ok, detail = attempt()
        except Exception as error:  # noqa: BLE001 - one broken probe must not hide the others
            ok, detail = False, f"broke: {type(error).__name__}: {error}"
        report[name] = {"ok": bool(ok), "detail": detail}
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
