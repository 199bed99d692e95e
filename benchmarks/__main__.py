"""`make bench`: run every benchmark of the specification in turn, for sandboxd and the peers.

`python -m benchmarks [--jobs a,b] [--peers a,b|all|none] [--quick] [--publish]`. Each job is a separate process and
writes benchmarks/results/JOB.json; --publish copies the newest results of every job into docs/.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks import compare, publish
from benchmarks.daemon import image
from benchmarks.measure import RESULTS, Promise, load, show_promises
from benchmarks.peers import environment, pick

# The arguments of each job, for a full run and for a quick one.
JOBS: dict[str, tuple[list[str], list[str]]] = {
    "exec": (["--rounds", "1000"], ["--rounds", "100"]),
    "visible": (["--rounds", "300"], ["--rounds", "50"]),
    "mirror": (["--rounds", "120"], ["--rounds", "20", "--most", "1000"]),
    "neighbour": (["--rounds", "300"], ["--rounds", "100"]),
    "growth": ([], ["--most", "10", "--artifacts", "100"]),
    "load": (["--seconds", "60"], ["--seconds", "5", "--sandboxes", "6"]),
    "stages": (["--rounds", "40"], ["--rounds", "5"]),
    "resume": (["--rounds", "40"], ["--rounds", "10"]),
    "fork": (["--rounds", "40"], ["--rounds", "10"]),
    "consolidation_quality": ([], []),
    "egress": (["--rounds", "20"], ["--rounds", "3", "--megabytes", "100"]),
    "inspector": (["--rounds", "10"], ["--rounds", "2"]),
    "compare": (["--rounds", "200"], ["--rounds", "20"]),
}
PARTS = tuple(compare.JOBS)


def plan(jobs: Sequence[str], peers: Sequence[str], *, is_quick: bool) -> list[list[str]]:
    """Return the command lines of the requested jobs. A part of the comparison may be named as a job."""
    if unknown := [job for job in jobs if job not in {*JOBS, *PARTS, "pool"}]:
        raise ValueError(f"cannot find the job {unknown[0]}: choose from {', '.join((*JOBS, *PARTS))}")
    parts = [part for part in PARTS if part in jobs or (part == "first" and "pool" in jobs)]
    commands = []
    for job, (full, quick) in JOBS.items():
        if job not in jobs and not (job == "compare" and parts):
            continue
        arguments = [*(quick if is_quick else full)]
        if job == "compare":
            arguments += ["--peers", *peers]
            if "compare" not in jobs:
                arguments += ["--jobs", *parts]
        commands.append([sys.executable, "-m", f"benchmarks.{job}", *arguments])
    return commands


def results_of(command: Sequence[str]) -> str:
    """Return the name of a command's results file."""
    name = command[2].removeprefix("benchmarks.")
    is_part = name == "compare" and ("--jobs" in command or "all" not in command)
    return "compare-part" if is_part else name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default=",".join(JOBS), help=f"comma-separated, from {', '.join((*JOBS, *PARTS))}")
    parser.add_argument("--peers", default="all")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a rough estimate")
    parser.add_argument("--publish", action="store_true", help="write the figures and the charts to docs/")
    given = parser.parse_args()
    peers = given.peers.split(",")
    try:
        pick(peers)
        commands = plan(given.jobs.split(","), peers, is_quick=given.quick)
    except ValueError as error:
        parser.error(str(error))
    if any(entry.is_foreign for entry in pick(peers)) and any(c[2] == "benchmarks.compare" for c in commands):
        environment.make(image())
    if given.quick and given.publish:
        parser.error("cannot publish a quick run: its figures are rough estimates; run it without --quick")
    failed = []
    for command in commands:
        started = time.monotonic()
        print(f"==> {command[2]}", flush=True)
        if subprocess.run(command).returncode != 0:
            failed.append(command[2])
        print(f"    done in {time.monotonic() - started:.0f} s", flush=True)
    measured = [results_of(command) for command in commands if command[2] not in failed]
    promises = [Promise(**item) for job in measured for item in (load(job) or {"promises": []})["promises"]]
    show_promises(promises)
    print(f"results in {RESULTS.name}/, picture: {publish.preview().name}")
    if given.publish:
        for path in publish.publish(publish.DOCS):
            print(f"written: docs/{path.name}")
    for job in failed:
        print(f"error: cannot measure {job}: it ended with an error, see above", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
