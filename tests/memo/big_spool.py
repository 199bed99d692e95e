"""Write a large spool, read a line from its middle and print what that cost. Run as a program."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import AsyncIterator

import anyio

from memo.spool import DiskSpool

LINES_A_BLOCK = 2048
LINE_BYTES = 128


def line(number: int) -> str:
    return f"{number:012d}".ljust(LINE_BYTES - 1, ".")


def block(number: int) -> bytes:
    """Only the first line of a block has a number: formatting every line would dominate the measurement."""
    return (line(number * LINES_A_BLOCK) + "\n").encode() + (
        ("." * (LINE_BYTES - 1) + "\n") * (LINES_A_BLOCK - 1)
    ).encode()


async def blocks(count: int) -> AsyncIterator[bytes]:
    for number in range(count):
        yield block(number)


def read_bytes() -> int:
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def main(directory: str, mib: int) -> None:
    count = mib * 1024 * 1024 // (LINES_A_BLOCK * LINE_BYTES)
    before = peak_bytes()
    spool = DiskSpool(directory)
    reader = await spool.write("big", blocks(count))
    lines = await reader.line_count()
    middle = count // 2 * LINES_A_BLOCK
    start = read_bytes()
    found = await reader.line(middle)
    print(
        json.dumps(
            {
                "size": await reader.byte_length(),
                "lines": lines,
                "is_right": found == line(middle),
                "read_for_one_line": read_bytes() - start,
                "grown": peak_bytes() - before,
            }
        )
    )


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], int(sys.argv[2]))
