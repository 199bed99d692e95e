"""Time from a commit in the store until a process inside the container can read it, through a real daemon.

`python -m benchmarks.visible [--rounds N]` prints a table and writes benchmarks/results/visible.json. The writer is a
separate process, as a job on the host would be; writer and reader share the kernel's clock.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from benchmarks import interruptible
from benchmarks.daemon import own_directory, serving
from benchmarks.measure import Figure, Promise, figure, show, show_promises, write
from memo import DocumentKey, SQLiteStore
from sandboxd.client import AsyncClient

PATH = "/workspace/memo/session/NOTES.md"
PAUSE_S = 0.0002
"""The reader's pause between two reads, because a spinning reader would take CPU time. It is part of the figure."""

READER = """
import json, sys, time
path, pause, last = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
seen, torn, back = -1, 0, 0
print("reading", flush=True)
while seen < last:
    with open(path) as file:
        text = file.read()
    at = time.perf_counter()
    numbers = {int(line) for line in text.split()}
    if len(numbers) != 1 or len(text.split()) != 200:
        torn += 1
        continue
    number = numbers.pop()
    if number < seen:
        back += 1
    elif number > seen:
        seen = number
        print(json.dumps([number, at]), flush=True)
    time.sleep(pause)
print(json.dumps({"torn": torn, "back": back}), flush=True)
"""


def text_of(number: int) -> str:
    """Return the same number two hundred times, so that a reader can detect a torn text."""
    return f"{number}\n" * 200


class Lines:
    """Yield the output of a background process, line by line."""

    def __init__(self, api: AsyncClient, session: str, process: str) -> None:
        self._api, self._session, self._process = api, session, process
        self._offset = 0
        self._rest = b""

    async def next(self) -> bytes:
        while b"\n" not in self._rest:
            found = await self._api.read_process(self._session, self._process, offset=self._offset, wait_s=10)
            self._offset = found.next_offset
            self._rest += found.data
            if not found.data and not found.process.running:
                raise RuntimeError("cannot measure: the reader inside the container has ended")
        line, _, self._rest = self._rest.partition(b"\n")
        return line


async def measure(root: Path, rounds: int) -> tuple[list[Figure], int, int]:
    key = DocumentKey.of("bench", "s", "session", "NOTES.md")
    unseen = DocumentKey.of("bench", "other", "session", "NOTES.md")
    committed, seen, bare = [], [], []
    async with (
        serving(root / "daemon") as daemon,
        AsyncClient(daemon.socket, tenant="bench") as api,
        SQLiteStore(daemon.data / "memo.db") as store,
    ):
        await api.ensure_sandbox("s", "bench")
        await api.write_memo("s", "NOTES.md", text_of(0))
        reader = await api.start_process("s", ["python3", "-c", READER, PATH, str(PAUSE_S), str(rounds)])
        lines = Lines(api, "s", reader.id)
        assert await lines.next() == b"reading"
        await lines.next()
        for number in range(1, rounds + 1):
            started = time.perf_counter()
            await store.write_document(unseen, text_of(number))
            bare.append((time.perf_counter() - started) * 1000)
            started = time.perf_counter()
            await store.write_document(key, text_of(number))
            at = time.perf_counter()
            shown, read_at = json.loads(await lines.next())
            if shown != number:
                raise RuntimeError(f"cannot measure: the container shows {shown}, not {number}")
            committed.append((at - started) * 1000)
            seen.append(max(read_at - at, 0) * 1000)
        verdict = json.loads(await lines.next())
        await api.destroy_sandbox("s")
    figures = [
        figure("a commit without readers", bare),
        figure("a commit", committed),
        figure("committed → read in the container", seen),
    ]
    return figures, verdict["torn"], verdict["back"]


def run(rounds: int) -> None:
    with own_directory() as root:
        figures, torn, back = interruptible.run(measure, root, rounds)
    show("from the store to a reader inside", figures, "a commit")
    p50 = figures[-1].p50_ms
    promises = [
        Promise(
            "a committed change is readable in the container", "p50 ≤ 3 ms", f"{p50:.2f} ms", p50 <= 3, figures[-1].n
        ),
        Promise("never torn, never back", "0", f"{torn} torn, {back} back", torn == 0 and back == 0, figures[-1].n),
    ]
    show_promises(promises)
    print(f"written to {write('visible', {'from the store to a reader inside': figures}, promises).name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    run(parser.parse_args().rounds)
