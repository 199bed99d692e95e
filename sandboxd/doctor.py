"""`sandboxd doctor`: what this host offers, how well it isolates, and what to do about it.

It looks, and leaves everything as it was. Each line is ok, weak or missing.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

import anyio

from memo import StoreOptions, capabilities_of, open_store
from memo.errors import MemoError
from sandboxd.api.guard import read_token
from sandboxd.engine.protocol import Engine, Finding
from sandboxd.engine.select import select_engine
from sandboxd.errors import SandboxdError
from sandboxd.host import diagnose_agent_user, diagnose_host, diagnose_open_files
from sandboxd.image import default_image
from sandboxd.settings import Settings
from sandboxd.workspace import Workspaces

_STORE_DEADLINE_S = 10.0


async def examine(settings: Settings) -> list[Finding]:
    findings = [*diagnose_host(settings.data), diagnose_open_files(settings), diagnose_agent_user(settings.uid)]
    findings += _examine_token(settings)
    findings += [*await _examine_workspaces(settings), await _examine_store(settings)]
    with tempfile.TemporaryDirectory(prefix="sandboxd-doctor-") as state:  # a daemon may be at work in the real one
        return findings + await _examine_engine(settings, Path(state))


async def _examine_engine(settings: Settings, state: Path) -> list[Finding]:
    try:
        selection = await select_engine(settings.engine, state, fallback=settings.engine_fallback)
    except SandboxdError as error:
        return [Finding("engine", "missing", str(error), "start the engine, or run `make engine`")]
    engine = selection.engine
    advice = "start the engine, or choose one with --engine" if selection.is_fallback else ""
    verdict: Literal["ok", "weak"] = "weak" if selection.is_fallback else "ok"
    findings = [Finding("engine choice", verdict, f"{engine.name}, because {selection.why}", advice)]
    try:
        findings += await engine.diagnose()
        findings.append(await _examine_image(engine, settings.image or default_image(engine.name)))
    except SandboxdError as error:
        findings.append(Finding("engine", "missing", str(error), "start the engine and try again"))
    finally:
        await engine.aclose()
    return findings


def _examine_token(settings: Settings) -> list[Finding]:
    if settings.token_file is None:
        return []
    try:
        read_token(settings.token_file)
    except SandboxdError as error:
        return [Finding("token file", "missing", str(error), "make one that only the daemon's user can read")]
    return [Finding("token file", "ok", "only the daemon's user can read it")]


async def _examine_store(settings: Settings) -> Finding:
    if settings.store is None and not (settings.data / "memo.db").exists():
        return Finding("store", "ok", "SQLite in the data directory, made at the first start")
    try:
        with anyio.fail_after(_STORE_DEADLINE_S):
            async with open_store(settings.store_url, StoreOptions(limits=settings.store_limits)) as store:
                missing = capabilities_of(store).missing()
    except TimeoutError:
        detail = f"cannot open it: no answer within {_STORE_DEADLINE_S:g} s"
        return Finding("store", "missing", detail, "start the store, or give another --store")
    except MemoError as error:
        return Finding("store", "missing", str(error), "start the store, or give another --store")
    if missing:
        return Finding("store", "weak", f"it cannot: {', '.join(missing)}", "memory works as far as the store goes")
    return Finding("store", "ok", "it can do everything that memory needs")


async def _examine_workspaces(settings: Settings) -> list[Finding]:
    """Try what a workspace needs, in a directory of its own: a daemon may be at work in the real one."""
    nearest = next(path for path in (settings.data, *settings.data.parents) if path.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=nearest) as scratch:
            workspaces = Workspaces(Path(scratch), uid=settings.uid, gid=settings.gid)
            await workspaces.open()
            return workspaces.diagnose()
    except (SandboxdError, OSError) as error:
        return [Finding("workspaces", "missing", str(error), "give a writable --data directory")]


async def _examine_image(engine: Engine, image: str) -> Finding:
    if await engine.has_image(image):
        return Finding("image", "ok", f"{image} is in the engine")
    return Finding("image", "missing", f"{image} is not in the engine", "run `make image`, or give another --image")
