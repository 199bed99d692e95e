"""PackageSources: where pip, npm and apt of this host get packages, asked from these tools and never listed here.

User names and passwords are taken out of the URLs, so that none reaches a container; sources that are not http or https
are left out. Logins that a tool keeps elsewhere (netrc, keyring, npm's tokens, apt's auth.conf), a token in the path of
a URL, and the proxy of a tool are not recognised.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import anyio
import anyio.abc

from sandboxd.errors import InvalidRequest
from sandboxd.network.host_names import join_host_port, parse_host
from sandboxd.network.rules import EgressRule

_DEADLINE_S = 10.0
_MAX_OUTPUT_BYTES = 1024 * 1024
_PORTS = {"http": 80, "https": 443}
_PIP_SECTIONS = ("global", "install", ":env:")
"""The sections that count for `pip install`; a later one wins."""
_PIP_DEFAULTS = """
from importlib.util import find_spec
if find_spec("pip"):
    try:
        from pip._internal.models.index import PyPI
        print(PyPI.simple_url, PyPI.netloc, PyPI.file_storage_domain)
    except (ImportError, AttributeError):
        print("unknown")
"""
"""Prints nothing without pip. pip has no command that names its default index, and the host of that index's files."""

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class SourceLogin:
    """The user name and password of a package source, for HTTP's basic authentication."""

    host: str
    port: int
    username: str = field(repr=False)
    password: str = field(repr=False)
    is_tls: bool = True


@dataclass(frozen=True, slots=True)
class PackageSources:
    """What `preset:packages` allows, and what a container needs to use it."""

    rules: tuple[EgressRule, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for the container, without secrets."""
    logins: tuple[SourceLogin, ...] = ()
    """What the daemon adds to requests."""
    ca_files: tuple[Path, ...] = ()
    """The files of certificate authorities that the tools trust."""
    problems: tuple[str, ...] = ()
    """What could not be found out, as sentences. A tool that is not installed is not a problem."""


async def read_package_sources(
    env: Mapping[str, str] | None = None,
    *,
    interpreters: Sequence[str] = ("python3", "python", sys.executable),
    deadline_s: float = _DEADLINE_S,
) -> PackageSources:
    """Ask the tools on the PATH of an environment, by default the daemon's. Each question has a deadline."""
    tools = _Tools(dict(os.environ if env is None else env), deadline_s)
    pip, npm, apt = parts = _Findings("pip"), _Findings("npm"), _Findings("apt")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_collect, pip, partial(_ask_pip, tools, interpreters))
        tasks.start_soon(_collect, npm, partial(_ask_npm, tools))
        tasks.start_soon(_collect, apt, partial(_ask_apt, tools))
    return PackageSources(
        rules=_unique(rule for part in parts for rule in part.rules),
        env=MappingProxyType({name: value for part in parts for name, value in part.env.items()}),
        logins=_unique(login for part in parts for login in part.logins),
        ca_files=_unique(path for part in parts for path in part.ca_files),
        problems=_unique(problem for part in parts for problem in part.problems),
    )


class _Unanswered(Exception):
    """A tool did not answer. The message says what was asked, and never what the tool wrote: that may be a secret."""


class _Findings:
    """What one tool has answered so far."""

    def __init__(self, tool: str) -> None:
        self.tool = tool
        self.rules: list[EgressRule] = []
        self.env: dict[str, str] = {}
        self.logins: list[SourceLogin] = []
        self.ca_files: list[Path] = []
        self.problems: list[str] = []

    def add_host(self, host: str, port: int) -> None:
        # the administrator of the host has chosen it, wherever it is
        self.rules.append(EgressRule(host, port, private=True))

    def add_url(self, url: str) -> str | None:
        """Allow the host of a URL and return the URL without its secrets; None if it is not one to connect to."""
        try:
            parts = urlsplit(url)
            if parts.scheme not in _PORTS:
                return None
            name = parts.hostname or ""
            host = parse_host(f"[{name}]" if ":" in name else name)
            port = parts.port or _PORTS[parts.scheme]
        except (ValueError, InvalidRequest):
            self.problems.append(f"cannot allow a package source of {self.tool}: its URL has no valid host and port")
            return None
        self.add_host(host, port)
        if parts.username is not None:
            name, password = unquote(parts.username), unquote(parts.password or "")
            self.logins.append(SourceLogin(host, port, name, password, is_tls=parts.scheme == "https"))
        return parts._replace(netloc=join_host_port(host, parts.port), query="", fragment="").geturl()

    def add_ca_file(self, path: object) -> None:
        if isinstance(path, str) and os.path.isabs(os.path.expanduser(path)):
            self.ca_files.append(Path(path).expanduser())


class _Tools:
    """Runs the tools of this host, from its root directory: no project's configuration applies."""

    def __init__(self, env: Mapping[str, str], deadline_s: float) -> None:
        self._env = env
        self._deadline_s = deadline_s

    def has(self, name: str) -> bool:
        return self._path(name) is not None

    async def ask(self, *command: str, asked: str) -> str:
        """Return what a command prints; `asked` says in an error what it was asked for."""
        path = self._path(command[0])
        try:
            with anyio.fail_after(self._deadline_s):
                return await self._run([path or command[0], *command[1:]])
        except TimeoutError:
            why = f"did not end within {self._deadline_s:g} s"
        except OSError as error:
            why = f"cannot be started: {error.strerror}"
        except _Unanswered as error:
            why = str(error)
        raise _Unanswered(f"cannot ask {command[0]} for {asked}: it {why}")

    async def _run(self, command: list[str]) -> str:
        with anyio.CancelScope(shield=True):  # a process that has started must be known, so that it can be ended
            # A session of its own, so that a wrapper's child ends with it.
            process = await anyio.open_process(
                command,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._env,
                cwd="/",
                start_new_session=True,
            )
        ended = False
        try:
            output = await _read_bounded(process.stdout)
            ended = await process.wait() == 0
            if not ended:
                raise _Unanswered(f"ended with {process.returncode}")
            return output.decode(errors="replace")
        finally:
            if not ended:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.aclose()

    def _path(self, name: str) -> str | None:
        return shutil.which(name, path=self._env.get("PATH", ""))


async def _read_bounded(stdout: anyio.abc.ByteReceiveStream | None) -> bytes:
    output = bytearray()
    if stdout is not None:
        async for piece in stdout:
            output += piece
            if len(output) > _MAX_OUTPUT_BYTES:
                raise _Unanswered(f"printed more than {_MAX_OUTPUT_BYTES} bytes")
    return bytes(output)


async def _collect(found: _Findings, ask: Callable[[_Findings], Awaitable[None]]) -> None:
    try:
        await ask(found)
    except _Unanswered as error:
        found.problems.append(str(error))


async def _ask_pip(tools: _Tools, interpreters: Sequence[str], found: _Findings) -> None:
    for python in interpreters:
        defaults = (
            await tools.ask(python, "-c", _PIP_DEFAULTS, asked="pip's default index") if tools.has(python) else ""
        )
        if defaults.strip():
            listing = await tools.ask(python, "-m", "pip", "config", "list", asked="pip's configuration")
            _read_pip(_pip_settings(listing), defaults.split(), found)
            return


def _pip_settings(listing: str) -> dict[str, str]:
    """Return the settings that count for `pip install` from lines as `global.index-url='https://…'`."""
    sections: dict[str, dict[str, str]] = {section: {} for section in _PIP_SECTIONS}
    for line in listing.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in sections:
            with suppress(ValueError, SyntaxError):  # a warning of pip among the lines
                sections[section][name] = str(ast.literal_eval(value))
    return {name: value for section in sections.values() for name, value in section.items()}


def _read_pip(settings: Mapping[str, str], defaults: list[str], found: _Findings) -> None:
    default, default_host, file_host = defaults if len(defaults) == 3 else ("", "", "")
    no_index = settings.get("no-index", "").lower() in ("1", "true", "yes", "on")
    index = settings.get("index-url") or default
    if not no_index and not index:
        found.problems.append("cannot ask pip for its default index: this pip keeps it elsewhere; set index-url")
    urls = [] if no_index else [index, *settings.get("extra-index-url", "").split()]
    indexes = _unique(clean for url in urls if url and (clean := found.add_url(url)))
    links = _unique(clean for url in settings.get("find-links", "").split() if (clean := found.add_url(url)))
    hosts = {rule.host for rule in found.rules}
    if default_host in hosts:  # only this index is known to name files on another host
        found.add_host(parse_host(file_host), _PORTS["https"])
    found.add_ca_file(settings.get("cert"))
    trusted = [host for host in settings.get("trusted-host", "").split() if host.partition(":")[0].lower() in hosts]
    values = {
        "PIP_INDEX_URL": "".join(indexes[:1]),
        "PIP_EXTRA_INDEX_URL": " ".join(indexes[1:]),
        "PIP_FIND_LINKS": " ".join(links),
        "PIP_NO_INDEX": "1" if no_index and links else "",
        "PIP_TRUSTED_HOST": " ".join(trusted),
    }
    found.env.update({name: value for name, value in values.items() if value})


async def _ask_npm(tools: _Tools, found: _Findings) -> None:
    if not tools.has("npm"):
        return
    # otherwise npm writes a log file for each question
    answer = await tools.ask("npm", "config", "ls", "-l", "--json", "--logs-max=0", asked="its registries")
    try:
        settings = json.loads(answer)
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise _Unanswered("cannot ask npm for its registries: it did not print a JSON object")
    if not isinstance(settings.get("registry"), str):
        found.problems.append("cannot ask npm for its registry: npm hides a URL with a password; take the password out")
    for name, url in settings.items():
        is_scoped = name.startswith("@") and name.endswith(":registry")
        if (name == "registry" or is_scoped) and isinstance(url, str) and (clean := found.add_url(url)):
            found.env[f"npm_config_{name}" if is_scoped else "NPM_CONFIG_REGISTRY"] = clean
    found.add_ca_file(settings.get("cafile"))


async def _ask_apt(tools: _Tools, found: _Findings) -> None:
    if not tools.has("apt-get"):
        return
    targets = await tools.ask("apt-get", "indextargets", "--format", "$(REPO_URI)", asked="its sources")
    for url in _unique(targets.split()):
        found.add_url(url)
    if tools.has("apt-config"):
        options = await tools.ask("apt-config", "dump", "--format", "%f=%v%n", "Acquire::https", asked="its CA files")
        for name, _, value in (line.partition("=") for line in options.splitlines()):
            if name.lower().endswith("::cainfo"):
                found.add_ca_file(value)


def _unique(values: Iterable[V]) -> tuple[V, ...]:
    return tuple(dict.fromkeys(values))
