"""Containers through the Docker API: Docker 20.10 or newer, or Podman's compatible socket.

Only this package imports `docker`. Its SDK blocks, so every call runs in a thread behind a limiter: this is
the control path, never the path of a tool call. The SDK's errors are translated here, once, and go no further.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import docker
import requests
from docker import errors as docker_errors
from docker.utils import kwargs_from_env

from sandboxd.engine import seccomp
from sandboxd.engine.address import find_socket
from sandboxd.engine.docker import answers, kernel_log
from sandboxd.engine.docker.causes import DeathLedger, Judgement, Outage, RawEvent
from sandboxd.engine.docker.diagnosis import diagnose_engine
from sandboxd.engine.docker.watch import EventWatch, StreamLost
from sandboxd.engine.protocol import (
    LABEL_INSTANCE,
    Container,
    ContainerDied,
    ContainerPaused,
    ContainerResumed,
    ContainerSpec,
    EngineEvent,
    Finding,
    Resynced,
)
from sandboxd.engine.spec import render_container
from sandboxd.errors import EngineRefused, EngineUnavailable, SandboxdError
from sandboxd.models.sandbox import Stats

LAUNCHES_AT_ONCE = 2  # more at once would make each of them slower
CALLS_AT_ONCE = 4
CALL_TIMEOUT_S = 60
CONNECT_TIMEOUT_S = 10
CLEANUP_DEADLINE_S = 30
_REMOVE_DELAYS_S = (0.05, 0.2, 0.8, 2.0)

T = TypeVar("T")


class DockerEngine:
    """Owns the connections to one engine and the threads that use them."""

    name: str

    def __init__(self, state_dir: Path, base_url: str | None = None) -> None:
        """`state_dir` holds files that the engine reads; without `base_url` it tries the usual addresses."""
        self.name = "docker"
        self._state_dir = state_dir
        self._base_url = base_url
        self._launching = anyio.CapacityLimiter(LAUNCHES_AT_ONCE)
        self._calling = anyio.CapacityLimiter(CALLS_AT_ONCE)
        self._connecting = threading.Lock()
        self._client: docker.APIClient | None = None
        self._api_version: str | None = None
        self._watches: set[EventWatch] = set()
        self._outage = Outage()

    async def launch(self, spec: ContainerSpec) -> Container:
        launched = False
        try:
            container = await self._run("launch", partial(self._launch, spec), self._launching, hide=spec)
            await anyio.lowlevel.checkpoint_if_cancelled()  # cancelled while the thread worked
            launched = True
            return container
        finally:
            if not launched:
                with anyio.move_on_after(CLEANUP_DEADLINE_S, shield=True), suppress(SandboxdError):
                    await self._run("clean up", partial(self._remove_ours, spec), self._calling)

    async def remove(self, container_id: str) -> None:
        for delay_s in _REMOVE_DELAYS_S:
            try:
                return await self._run("remove", partial(self._remove, container_id), self._calling)
            except _StillBusy:
                await anyio.sleep(delay_s)
        raise EngineRefused("cannot remove the container: its filesystem stays busy")

    async def inspect(self, container_id: str) -> Container | None:
        return await self._run("inspect", partial(self._inspect, container_id), self._calling, is_read=True)

    async def pause(self, container_id: str) -> None:
        await self._run("pause the container", partial(self._set_paused, container_id, True), self._calling)

    async def resume(self, container_id: str) -> None:
        await self._run("resume the container", partial(self._set_paused, container_id, False), self._calling)

    async def find(self, labels: Mapping[str, str]) -> list[Container]:
        return await self._run("find containers", partial(self._find, dict(labels)), self._calling, is_read=True)

    def events(self) -> AsyncIterator[EngineEvent]:
        watch = EventWatch(
            self._open_stream, self._outage
        )  # now, not at the first iteration: events count from this call on
        self._watches.add(watch)
        return self._translated(watch)

    async def stats(self, container_id: str) -> Stats:
        return await self._run("read stats", partial(self._stats, container_id), self._calling, is_read=True)

    async def has_image(self, image: str) -> bool:
        return await self._run("look for the image", partial(self._has_image, image), self._calling, is_read=True)

    async def find_runtime(self, name: str | None) -> str | None:
        info = await self._run("list runtimes", lambda client: client.info(), self._calling)
        return answers.pick_runtime(info, name, is_podman=self.name == "podman")

    async def ping(self) -> None:
        """Raise EngineUnavailable unless the engine answers."""
        await self._run("reach the engine", lambda client: client.ping(), self._calling, is_read=True)

    async def diagnose(self) -> list[Finding]:
        return await self._run(
            "diagnose",
            lambda client: diagnose_engine(client.info(), client.version()),
            self._calling,
            is_read=True,
        )

    async def aclose(self) -> None:
        for watch in tuple(self._watches):
            await watch.aclose()
        self._watches.clear()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    async def _translated(self, watch: EventWatch) -> AsyncIterator[EngineEvent]:
        ledger = DeathLedger()
        try:
            async for event in watch:
                if isinstance(event, Resynced):
                    yield event
                elif event.action == "pause":
                    yield ContainerPaused(event.container_id)
                elif event.action == "unpause":
                    yield ContainerResumed(event.container_id)
                elif (judgement := ledger.judge(event)) is not None:
                    yield await self._explain(judgement)
        finally:
            self._watches.discard(watch)
            await watch.aclose()

    async def _explain(self, judgement: Judgement) -> ContainerDied:
        """Complete the stream's report of a death with details that only the engine has."""
        died = judgement.died
        if died.cause != "killed":
            return died
        if self.name == "docker" and not await anyio.to_thread.run_sync(self._takes_connections, limiter=self._calling):
            self._outage.begin(judgement.at_ns)
        if self._is_lost_with_engine(judgement.at_ns):
            return replace(died, cause="engine")
        return died if judgement.is_sure else await self._ask_cause(died)

    async def _ask_cause(self, died: ContainerDied) -> ContainerDied:
        try:
            container = await self.inspect(died.container_id)
        except (EngineUnavailable, EngineRefused):
            return died
        if container is not None and container.cause is not None:
            return replace(died, cause=container.cause)
        is_oom = await anyio.to_thread.run_sync(kernel_log.tells_oom, died.container_id, limiter=self._calling)
        return replace(died, cause="oom") if is_oom else died

    def _is_lost_with_engine(self, at_ns: int) -> bool:
        """Podman's containers need no daemon, so they outlive its service."""
        return self.name == "docker" and self._outage.covers(at_ns)

    async def _run(
        self,
        verb: str,
        call: Callable[[docker.APIClient], T],
        limiter: anyio.CapacityLimiter,
        hide: ContainerSpec | None = None,
        *,
        is_read: bool = False,
    ) -> T:
        # Abandoning a read loses nothing, and a frozen engine must not delay the daemon's exit.
        return await anyio.to_thread.run_sync(self._call, verb, call, hide, limiter=limiter, abandon_on_cancel=is_read)

    # Everything below runs in threads.

    def _call(self, verb: str, call: Callable[[docker.APIClient], T], hide: ContainerSpec | None) -> T:
        try:
            return call(self._connect())
        except docker_errors.APIError as error:
            raise answers.refusal(verb, _explain(error), hide) from None
        except (docker_errors.DockerException, requests.exceptions.RequestException, OSError) as error:
            why = getattr(error, "strerror", None)  # such as no such file, permission denied
            raise EngineUnavailable(f"cannot {verb}: the engine does not answer{f' ({why})' if why else ''}") from None

    def _connect(self) -> docker.APIClient:
        address = self._reach()
        with self._connecting:
            if self._client is None:
                client = self._new_client(address, CONNECT_TIMEOUT_S)  # the first answer must come quickly
                client.timeout = CALL_TIMEOUT_S
                self._client = client
            return self._client

    def _reach(self) -> str:
        """Return an address that accepts connections. The SDK would leak a socket that cannot connect."""
        address = self._base_url or find_socket()
        if address is None:
            raise EngineUnavailable("cannot reach an engine: no Docker or Podman socket on this host")
        scheme, _, path = address.partition("://")
        if scheme == "unix":
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(CONNECT_TIMEOUT_S)
                probe.connect(path)
        return address

    def _takes_connections(self) -> bool:
        """Return whether the engine accepts connections. An engine in shutdown refuses them; a slow one does not."""
        try:
            self._reach()
        except (ConnectionRefusedError, FileNotFoundError, EngineUnavailable):
            return False
        except OSError:
            return True
        return True

    def _new_client(self, address: str, timeout_s: int) -> docker.APIClient:
        tls = kwargs_from_env().get("tls", False) if address == os.environ.get("DOCKER_HOST") else False
        make = partial(docker.APIClient, base_url=address, timeout=timeout_s, tls=tls)
        if self._api_version is None:
            with closing(make(version=".".join(map(str, answers.OLDEST_API)))) as client:
                answer = client.get(f"{client.base_url}/_ping", timeout=timeout_s)  # Podman's /version is slow
            answer.raise_for_status()
            self.name, self._api_version = answers.read_ping(answer.headers)
        return make(version=self._api_version)

    def _launch(self, spec: ContainerSpec, client: docker.APIClient) -> Container:
        body = render_container(spec, self._seccomp_option(), is_podman=self.name == "podman")
        answers.refuse_mounts(spec)
        try:
            created = self._create(spec, body, client)
            client.start(created)
        except docker_errors.APIError as error:
            if (missing := answers.missing_part(spec, error.status_code, _explain(error))) is not None:
                raise missing from None
            raise
        answer = client.inspect_container(created)
        answers.refuse_volumes(spec, answer)
        return self._describe(answer)

    def _create(self, spec: ContainerSpec, body: dict[str, Any], client: docker.APIClient) -> str:
        create: Any = client.create_container_from_config  # untyped in the stubs
        try:
            return str(create(body, spec.name)["Id"])
        except docker_errors.APIError as error:
            if not answers.is_name_taken(error.status_code, _explain(error)):
                raise
        if not self._remove_ours(spec, client):
            raise EngineRefused(f"cannot launch: the name {spec.name} belongs to another program's container")
        return str(create(body, spec.name)["Id"])

    def _remove_ours(self, spec: ContainerSpec, client: docker.APIClient) -> bool:
        """Remove the container of that name if its label says that it is ours; return False if it is not."""
        try:
            labels = client.inspect_container(spec.name)["Config"]["Labels"] or {}
        except docker_errors.NotFound:
            return True
        ours = spec.labels.get(LABEL_INSTANCE)
        if ours is None or labels.get(LABEL_INSTANCE) != ours:
            return False
        self._remove(spec.name, client)
        return True

    def _remove(self, container_id: str, client: docker.APIClient) -> None:
        try:
            client.remove_container(container_id, force=True, v=True)
        except docker_errors.NotFound:
            return
        except docker_errors.APIError as error:
            text = _explain(error).lower()
            if "already in progress" in text:
                with suppress(docker_errors.NotFound):
                    client.wait(container_id, timeout=CALL_TIMEOUT_S, condition="removed")
            elif "busy" in text or "could not kill" in text:
                raise _StillBusy from None
            else:
                raise

    def _set_paused(self, container_id: str, is_paused: bool, client: docker.APIClient) -> None:
        change = client.pause if is_paused else client.unpause
        try:
            change(container_id)
        except docker_errors.APIError:
            found = self._inspect(container_id, client)
            if found is None or not found.running:
                raise EngineRefused("cannot pause or resume this container: it does not run") from None
            if found.paused != is_paused:
                raise

    def _inspect(self, container_id: str, client: docker.APIClient) -> Container | None:
        try:
            return self._describe(client.inspect_container(container_id))
        except docker_errors.NotFound:
            return None

    def _describe(self, answer: Mapping[str, Any]) -> Container:
        container = answers.read_container(answer)
        if container.cause != "killed":
            return container
        if self._is_lost_with_engine(answers.read_death_ns(answer)):
            return replace(container, cause="engine")
        return replace(container, cause="oom") if kernel_log.tells_oom(container.id) else container

    def _find(self, labels: Mapping[str, str], client: docker.APIClient) -> list[Container]:
        wanted = [f"{name}={value}" for name, value in labels.items()]
        listed = client.containers(all=True, filters={"label": wanted})
        found = (self._inspect(str(line["Id"]), client) for line in listed)
        return [container for container in found if container is not None]

    def _stats(self, container_id: str, client: docker.APIClient) -> Stats:
        try:
            answer = client.stats(container_id, stream=False, one_shot=True)
        except docker_errors.NotFound:
            raise EngineRefused("cannot read stats: the engine has no such container") from None
        return answers.read_stats(answer)

    def _has_image(self, image: str, client: docker.APIClient) -> bool:
        inspect: Any = client.inspect_image  # untyped in the stubs
        try:
            inspect(image)
        except docker_errors.NotFound:
            return False
        return True

    def _seccomp_option(self) -> str:
        """Return the profile in the engine's form: Docker takes the JSON itself, Podman the path of a file."""
        if self.name != "podman":
            return seccomp.profile_text()
        file = self._state_dir / "seccomp.json"
        with self._connecting:
            if not file.exists() or file.read_text() != seccomp.profile_text():
                draft = file.with_suffix(".new")
                draft.write_text(seccomp.profile_text())
                draft.rename(file)
        return str(file)

    def _open_stream(self, since_ns: int) -> _DockerStream:
        try:
            return _DockerStream(self._new_client(self._reach(), CONNECT_TIMEOUT_S), since_ns)
        except (docker_errors.DockerException, requests.exceptions.RequestException, OSError, SandboxdError):
            self._api_version = None  # a different engine may come back
            raise StreamLost from None


class _StillBusy(Exception):
    """The kernel still holds the dead container's filesystem or its last process; it soon releases them."""


class _DockerStream:
    """The engine's event stream as raw events, over its own connection."""

    def __init__(self, client: docker.APIClient, since_ns: int) -> None:
        # Not filtered by label: Podman 4 finds nothing by a label's name alone. `read_event` checks the label.
        filters = {"type": ["container"], "event": list(answers.ACTIONS)}
        seconds, nanoseconds = divmod(since_ns, 1_000_000_000)
        since: Any = f"{seconds}.{nanoseconds:09}"  # the API accepts fractions, the stubs do not
        self._client = client
        self._events = client.events(since=since, filters=filters, decode=True)

    def __iter__(self) -> Iterator[RawEvent]:
        try:
            for event in self._events:
                if (raw := answers.read_event(event)) is not None:
                    yield raw
        except (docker_errors.DockerException, requests.exceptions.RequestException, ValueError):
            raise StreamLost from None  # cut in the middle of a line, or closed by another thread while reading

    def wake(self) -> None:
        with suppress(OSError, AttributeError):  # the SDK searches for the socket, which may already be gone
            self._events.close()

    def close(self) -> None:
        self.wake()
        # The SDK closes its socket but not the file made from it, which keeps the descriptor open.
        response: requests.Response = vars(self._events)["_response"]
        response.close()
        self._client.close()


def _explain(error: docker_errors.APIError) -> str:
    text = error.explanation
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text or "")
