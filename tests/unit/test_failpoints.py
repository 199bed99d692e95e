"""Failpoints act when they are armed, and only then."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd import failpoints
from sandboxd.errors import InvalidRequest

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


async def test_an_armed_error_is_raised_at_its_point_only() -> None:
    failpoints.arm("create.intent=error(ENOSPC)")
    await failpoints.reach("create.workspace")
    with pytest.raises(OSError) as caught:
        await failpoints.reach("create.intent")
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("text", ["create.nowhere=kill", "create.intent", "create.intent=error(EWHAT)", "=kill"])
async def test_a_misspelt_failpoint_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot arm"):
        failpoints.arm(text)


async def test_every_named_failpoint_is_reached_somewhere_in_the_code() -> None:
    package = Path(failpoints.__file__).parent
    sources = [path.read_text() for path in package.rglob("*.py") if path.stem != "failpoints"]
    families = "|".join(sorted({point.partition(".")[0] for point in failpoints.POINTS}))
    name = re.compile(rf'"((?:{families})\.(?!db|not_found)[a-z_]+)"')
    named = {match for text in sources for match in name.findall(text)}
    assert named == failpoints.POINTS
