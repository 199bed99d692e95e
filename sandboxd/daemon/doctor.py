"""`sandboxd doctor`: the state of the running daemon and of this host, how well it isolates, and what to improve.

It changes nothing. Each line is ok, weak or missing. A running daemon reports on its own engine, store and disk;
without a daemon, the engine, store and disk that the settings name are tested here.
"""

from __future__ import annotations

import re
import tempfile
import uuid
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import anyio

from memo import StoreOptions, capabilities_of, open_store
from memo.errors import MemoError
from sandboxd.api.guard import read_token
from sandboxd.api.tls import read_tls
from sandboxd.client import Client
from sandboxd.client.address import Address
from sandboxd.client.errors import KNOWN_ERRORS, DaemonUnreachable
from sandboxd.daemon.host import diagnose_agent_user, diagnose_host, diagnose_open_files
from sandboxd.engine.protocol import Engine, Finding
from sandboxd.engine.selection import select_engine
from sandboxd.errors import SandboxdError
from sandboxd.image import build_command, resolve_image
from sandboxd.sandboxes.runtime_probe import check_runtime
from sandboxd.settings import Settings
from sandboxd.workspace import Workspaces

_STORE_DEADLINE_S = 10.0
_FIGURE = re.compile(r'^(sandboxd_pool_ready|sandboxd_sandboxes\{state="(\w+)"\}) ([0-9.]+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DaemonReport:
    """What a running daemon reports about itself; `engine` and `data` are empty if it is not ready."""

    findings: tuple[Finding, ...]
    engine: str = ""
    data: str = ""


def ask_daemon(address: Address) -> DaemonReport:
    """Return the report of the daemon at this address; raise DaemonUnreachable if none answers this user."""
    client = Client(url=address.url, token=address.token) if address.socket is None else Client(address.socket)
    with client:
        try:
            findings = [_examine_version(str(client.health()["version"]), address), *_examine_figures(client.metrics())]
            ready = client.ready()
        except DaemonUnreachable:
            raise
        except KNOWN_ERRORS as error:
            advice = "read the log of `sandboxd serve`"
            return DaemonReport((Finding("daemon", "missing", f"at {address}: {error}", advice),))
    parts = {"engine": "answers", "store": "answers", "disk": "has room and can be written"}
    findings += [Finding(f"daemon's {part}", "ok", f"{ready[part]['name']} {verb}") for part, verb in parts.items()]
    return DaemonReport(tuple(findings), str(ready["engine"]["name"]), str(ready["disk"]["name"]))


async def examine(settings: Settings, daemon: DaemonReport | None = None) -> list[Finding]:
    """Examine this host; without a daemon, also test the engine, store and data directory of these settings."""
    if daemon is not None and daemon.engine:
        engine = "bubblewrap" if daemon.engine == "bubblewrap" else "docker"
        settings = settings.model_copy(update={"engine": engine, "data": Path(daemon.data)})
    findings = [] if daemon is None else list(daemon.findings)
    findings += [*diagnose_host(settings.data), diagnose_open_files(settings), diagnose_agent_user(settings.uid)]
    if daemon is None:
        findings += [
            *_examine_token(settings),
            *_examine_tls(settings),
            *await _examine_workspaces(settings),
            await _examine_store(settings),
        ]
    with tempfile.TemporaryDirectory(prefix="sandboxd-doctor-") as state:  # a daemon may be using the real one
        of_engine = await _examine_engine(settings, Path(state))
    return findings + [one for one in of_engine if daemon is None or one.subject != "engine choice"]


def _examine_version(daemon: str, address: Address) -> Finding:
    own = version("sandboxd")
    if daemon != own:
        return Finding("daemon", "weak", f"version {daemon} at {address}; this command is {own}", "restart the daemon")
    return Finding("daemon", "ok", f"version {daemon} at {address}")


def _examine_figures(metrics: str) -> list[Finding]:
    figures = {state or "pool": round(float(value)) for _, state, value in _FIGURE.findall(metrics)}
    pool = figures.pop("pool", 0)
    counts = ", ".join(f"{count} {state}" for state, count in figures.items() if count) or "none"
    return [
        Finding("daemon's sandboxes", "ok", f"{counts}, across all tenants"),
        Finding("daemon's pool", "ok", f"{pool} warm"),
    ]


async def _examine_engine(settings: Settings, state: Path) -> list[Finding]:
    try:
        selection = await select_engine(settings.engine, state, fallback=settings.engine_fallback)
    except SandboxdError as error:
        return [Finding("engine", "missing", str(error), "install and start Docker or Podman, or give --engine")]
    engine = selection.engine
    advice = "start the engine, or choose one with --engine" if selection.is_fallback else ""
    verdict: Literal["ok", "weak"] = "weak" if selection.is_fallback else "ok"
    findings = [Finding("engine choice", verdict, f"{engine.name}, because {selection.why}", advice)]
    try:
        findings += await engine.diagnose()
        findings.append(await _examine_image(engine, resolve_image(settings.image, engine.name)))
        findings.append(await _examine_runtime(engine, settings, state))
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
        return [Finding("token file", "missing", str(error), "create one that only the daemon's user can read")]
    return [Finding("token file", "ok", "only the daemon's user can read it")]


def _examine_tls(settings: Settings) -> list[Finding]:
    if settings.tls_cert is None or settings.tls_key is None:
        return []
    try:
        read_tls(settings.tls_cert, settings.tls_key)
    except SandboxdError as error:
        return [Finding("certificate", "missing", str(error), "give a certificate and its private key")]
    return [Finding("certificate", "ok", "it matches its key, and only the daemon's user can read the key")]


async def _examine_store(settings: Settings) -> Finding:
    if settings.store is None and not (settings.data / "memo.db").exists():
        return Finding("store", "ok", "SQLite in the data directory, created at the first start")
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
        return Finding(
            "store", "weak", f"it lacks: {', '.join(missing)}", "implement these methods to enable every feature"
        )
    return Finding("store", "ok", "it supports every feature of memory")


async def _examine_workspaces(settings: Settings) -> list[Finding]:
    """Test what a workspace needs in a scratch directory: a daemon may be using the real one."""
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
    command = build_command(image)
    advice = f"run `{command}`" if command else "pull it, or give another --image"
    return Finding("image", "missing", f"{image} is not in the engine", advice)


async def _examine_runtime(engine: Engine, settings: Settings, state: Path) -> Finding:
    """Test an unusual runtime with one small container."""
    try:
        instance = f"doctor-{uuid.uuid4().hex}"
        weakness = await check_runtime(engine, settings, instance=instance, state_dir=state)
        name = await engine.find_runtime(settings.runtime)
    except SandboxdError as error:
        return Finding("runtime", "missing", str(error), "see docs/how-to/engines.md")
    if weakness:
        detail, _, advice = weakness.partition("; ")
        return Finding("runtime", "weak", detail, advice)
    return Finding("runtime", "ok", f"containers run under {name or 'the engine itself'}")
