"""The daemon reads documents and the container reads files: an agent must not see a difference."""

from __future__ import annotations

import pytest

from sandboxd.runner.client import RunnerClient
from sandboxd.tools.read import slice_text

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

TEXTS = [
    "",
    "\n",
    "one",
    "one\n",
    "one\n\ntwo\r\n\x0c\u2028three",
    "x" * 2000 + "\n" + "y" * 2001 + "\n" + "ü" * 2000 + "\n" + "😀" * 2001,
    "".join(f"line {number}\n" for number in range(3000)),
    "z" * 1999 + "\n" + ("z" * 1999 + "\n") * 200,
]


async def test_documents_are_split_into_lines_as_files_are(runner: RunnerClient) -> None:
    for text in TEXTS:
        await runner.write_file("/workspace/text", text.encode())
        for first, limit in ((1, 2000), (1, 1), (2, 2), (130, 100), (5000, 10)):
            part, uncut = slice_text(text, first, limit)
            assert part == await runner.read_text("/workspace/text", first, limit)
            shown = {number for lines in uncut for number in lines}
            lines = text.split("\n")
            assert all(lines[number] == part.lines[number - first + 1] for number in shown)
            if first == 1:
                assert (shown == set(range(part.total_lines))) == (not part.truncated)
