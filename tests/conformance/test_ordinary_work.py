"""Typical agent work succeeds on every engine: users would turn off hardening that breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.engine.protocol import Engine, Mount
from sandboxd.limits import Limits
from tests.conformance.conftest import SpecMaker
from tests.conformance.deaths import listening

pytestmark = [pytest.mark.anyio, pytest.mark.isolation]

SCRIPT = (Path(__file__).parent / "ordinary_work.py").read_text()


async def test_ordinary_work_succeeds_in_a_hardened_container(
    engine: Engine, make_spec: SpecMaker, shared_dir: Path
) -> None:
    await assert_works(engine, make_spec, shared_dir)


async def test_a_process_can_be_referenced_by_a_descriptor(
    engine: Engine, make_spec: SpecMaker, shared_dir: Path
) -> None:
    await assert_works(engine, make_spec, shared_dir, "process_descriptors")


async def assert_works(engine: Engine, make_spec: SpecMaker, shared_dir: Path, *steps: str) -> None:
    command = ("sh", "-c", 'python3 -c "$0" /workspace "$@" > /workspace/said 2>&1', SCRIPT, *steps)
    mounts = (Mount(shared_dir, "/workspace", False),)
    async with listening(engine) as book:
        container = await engine.launch(make_spec(*command, mounts=mounts, limits=Limits(), env={"HOME": "/workspace"}))
        death = await book.death_of(container.id)
    assert (death.exit_code, (shared_dir / "said").read_text()) == (0, "all done\n")
