"""File calls in sandboxes with little memory: they answer for any file, and PID 1 stays small and alive."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator

import anyio
import pytest

from sandboxd.errors import InvalidRequest, SandboxdError
from sandboxd.runner.calls import Exec, Grep
from sandboxd.runner.client import RunnerClient
from tests.integration.runner.box import HANG_S, Box

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

MEBIBYTE = 1_048_576
FILES = {
    "tiny lines": "yes ab | head -c 10485000 > {}; echo needle >> {}",
    "empty lines": "yes '' | head -c 10485000 > {}; echo needle >> {}",
    "one line": "head -c 10485000 /dev/zero | tr '\\0' a > {}; echo needle >> {}",
    "text and a hole": "yes text | head -c 20000 > {}; truncate -s 100G {}",
}


@pytest.fixture(scope="module", params=[32, 64, 128, 192])
def small_box(request: pytest.FixtureRequest, agent_image: str) -> Iterator[Box]:
    box = Box(agent_image, memory=f"{request.param}m")
    try:
        yield box
    finally:
        box.remove()


@pytest.fixture
async def small(small_box: Box) -> AsyncGenerator[RunnerClient]:
    async with small_box.connected() as client:
        yield client


async def resident_bytes(runner: RunnerClient) -> int:
    """Return how much private memory PID 1 has."""
    status = (await runner.exec(Exec(("cat", "/proc/1/status")))).stdout.decode()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")))


async def make(runner: RunnerClient, kind: str) -> str:
    path = "/workspace/large"
    result = await runner.exec(Exec("rm -f large; " + FILES[kind].replace("{}", path)))
    assert result.exit_code == 0, result.stderr
    return path


@pytest.mark.parametrize("kind", FILES)
async def test_pid_1_survives_every_file_and_does_not_grow(small_box: Box, small: RunnerClient, kind: str) -> None:
    path = await make(small, kind)
    await small.read_text(path, limit=1)
    life, before = small_box.life(), await resident_bytes(small)
    with anyio.fail_after(HANG_S):
        for first in (1, 3000, 3_000_000):
            found = await small.read_text(path, first, 10)
            assert len(found.lines) <= 10
        assert (await small.read_text(path, limit=1_000_000)).lines
        for old, replace_all in (("needle", False), ("a", True), ("absent", False)):
            try:
                await small.edit_file(path, old, "pin", replace_all=replace_all)
            except InvalidRequest as error:
                assert str(error).startswith("cannot edit")
        if kind != "text and a hole":  # a hundred gigabytes of zeros end at the time limit, as they should
            for mode in ("content", "count"):
                try:
                    await small.grep(Grep("pin", path, output_mode=mode))
                except SandboxdError as error:
                    assert "memory" in str(error)
        assert (await small.glob("**/*")).paths
    assert await resident_bytes(small) < before + 2 * MEBIBYTE
    assert small_box.life() == life


async def test_pid_1_does_not_grow_with_an_archive(small_box: Box, small: RunnerClient) -> None:
    """A wide directory with long names, a deep one, and a file larger than the sandbox's memory."""
    script = (
        'rm -rf tree large; mkdir -p tree/wide $(python3 -c \'print("tree/" + "d/" * 500)\') && cd tree/wide && '
        'python3 -c \'for n in range(5000): open(f"{n:0200d}", "w").close()\' && truncate -s 300M ../sparse'
    )
    assert (await small.exec(Exec(script))).exit_code == 0

    async def copy() -> int:
        async with small.read_archive("/workspace/tree") as pieces:
            return (await small.write_archive("/workspace/copy", pieces)).entries

    with anyio.fail_after(2 * HANG_S):
        assert (await small.write_archive("/workspace/copy", _empty_archive())).entries == 0  # loads the modules
        life, before = small_box.life(), await resident_bytes(small)
        assert await copy() == 5_000 + 500 + 2
    assert await resident_bytes(small) < before + 2 * MEBIBYTE
    assert small_box.life() == life
    assert (await small.exec(Exec("diff -rq tree copy && rm -r tree copy"))).exit_code == 0


async def _empty_archive() -> AsyncIterator[bytes]:
    yield bytes(1024)


async def test_lines_are_found_wherever_they_are(small: RunnerClient) -> None:
    path = await make(small, "tiny lines")
    found = await small.read_text(path, 3_495_001, 10)
    assert (found.lines, found.total_lines, found.truncated, found.is_total_exact) == (
        ("needle",),
        3_495_001,
        False,
        True,
    )
    edited = await small.edit_file(path, "ab\nneedle", "b\npin")
    assert edited.replacements == 1
    assert (await small.read_text(path, 3_495_000)).lines == ("b", "pin")


async def test_a_file_that_is_too_large_to_count_is_reported_as_such(small: RunnerClient) -> None:
    path = await make(small, "text and a hole")
    found = await small.read_text(path, 1, 3)
    assert found.lines == ("text",) * 3
    assert (found.total_lines, found.truncated, found.is_total_exact) == (4001, True, False)


async def test_concurrent_large_edits_share_one_bound(small_box: Box, small: RunnerClient) -> None:
    life = small_box.life()
    text = "x" * 4_000_000
    outcomes: list[str] = []

    async def edit(number: int) -> None:
        path = f"/workspace/edited{number}"
        await small.write_file(path, b"old")
        try:
            await small.edit_file(path, "old", text)
            outcomes.append("done")
        except SandboxdError as error:
            outcomes.append(type(error).__name__)

    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(edit, number)
    assert "done" in outcomes
    assert set(outcomes) <= {"done", "Busy"}
    assert small_box.life() == life
