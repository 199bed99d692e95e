"""PID 1 of a sandbox: checks that this Python is suitable, then starts the loop.

Started as `python3 -I -S -B server.py RUN_DIR`. This file parses on any Python 3, so that an image that is too old can
report it. It does no other work.
"""

import os
import sys

OLDEST = (3, 9)
EXIT_UNUSABLE_IMAGE = 78


def load(name: str):  # type: ignore[no-untyped-def]
    """Import a sibling module. The directory has no importable name in the container, so this creates the package."""
    if "inside" not in sys.modules:
        package = type(sys)("inside")
        package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
        sys.modules["inside"] = package
    __import__("inside." + name)
    return sys.modules["inside." + name]


def find_problem() -> str:
    if sys.version_info < OLDEST:
        found = ".".join(str(part) for part in sys.version_info[:2])
        return "cannot use this image: its python3 is " + found + ", the runner needs 3.9 or later"
    try:
        import ctypes
    except ImportError:
        return "cannot use this image: its python3 has no ctypes module"
    return "" if hasattr(ctypes, "CDLL") else "cannot use this image: its ctypes module cannot load libraries"


def main(run_dir: str) -> int:
    problem = find_problem()
    if problem:
        sys.stderr.write(problem + "\n")
        load("greeting").report_problem(run_dir, problem)
        return EXIT_UNUSABLE_IMAGE
    return int(load("runner").serve(run_dir))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
