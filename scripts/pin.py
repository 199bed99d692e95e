"""Write requirements.txt, -dev.txt and -suites.txt: every dependency of pyproject.toml as `name==version`.

The resolver runs in a temporary environment, with the machine's own pip configuration. The files contain no address
and no local path. Usage: `scripts/with-python -m scripts.pin [--upgrade]`.
"""

from __future__ import annotations

import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from sandboxd.progress import run_step, say
from scripts.environment import ROOT
from scripts.verb import main

_OPTIONS = [
    "--quiet",
    "--no-header",
    "--no-annotate",
    "--strip-extras",
    "--no-emit-options",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-emit-trusted-host",
]

OWN_EXTRAS = ("retry",)
"""The extras that .venv has. The others are frameworks, whose pins exclude some of ours: .venv-suites has those."""


def _verb(arguments: Sequence[str]) -> int:
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, groups = content["project"], content["dependency-groups"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    frameworks = [package for name, packages in extras.items() if name not in OWN_EXTRAS for package in packages]
    own = [package for name in OWN_EXTRAS for package in extras[name]]
    inputs = {
        "requirements.txt": project["dependencies"],
        "requirements-dev.txt": [*project["dependencies"], *own, *groups["dev"]],
        "requirements-suites.txt": [*frameworks, *groups["suites"]],
    }
    with tempfile.TemporaryDirectory(prefix="sandboxd-pin-") as name:
        work = Path(name)
        run_step("making the resolver's environment", [sys.executable, "-m", "venv", name], cannot="cannot make it")
        pip = [str(work / "bin" / "python"), "-m", "pip", "install", "pip-tools"]
        run_step("installing pip-tools", pip, cannot="cannot install pip-tools")
        for target, wanted in inputs.items():
            (work / "wanted.in").write_text("\n".join(wanted))
            # Runtime pins bind the dev file too: .venv holds the same versions for both.
            constraint = ["-c", str(ROOT / "requirements.txt")] if target == "requirements-dev.txt" else []
            command = [str(work / "bin" / "pip-compile"), *_OPTIONS, *arguments, *constraint]
            command += ["-o", str(ROOT / target), str(work / "wanted.in")]
            run_step(f"resolving {target}", command, cannot=f"cannot resolve {target}")
    say(f"{', '.join(inputs)} are written")
    return 0


if __name__ == "__main__":
    main(_verb)
