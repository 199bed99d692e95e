"""Whether containers of a runtime can do what a sandbox needs: reach the daemon, and see that a file changes.

A runtime with a kernel of its own may allow neither, and not every engine reports its configuration. So one small
container tries both. It does not assess how well a runtime isolates.
"""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import SocketListener, SocketStream

from sandboxd.engine.protocol import LABEL_INSTANCE, Container, ContainerSpec, Engine, Mount
from sandboxd.errors import EngineRefused, EngineUnavailable, SandboxdError
from sandboxd.image import resolve_image
from sandboxd.settings import Settings

ORDINARY_RUNTIMES = frozenset({"runc", "crun", "io.containerd.runc.v2"})
"""They share the host's kernel, so a container sees the host's own files and sockets."""
GVISOR_PIDS = 1024
_LOOK_S = 0.2
_CLEANUP_S = 30.0
_NO_CONNECTION = 76
_INSIDE = f"""
import os, socket, sys
link = socket.socket(socket.AF_UNIX)
try:
    link.connect("/probe/socket")
except OSError:
    sys.exit({_NO_CONNECTION})
for _ in range(2):
    with open("/probe/text") as file:
        link.sendall(file.read().encode())
    link.recv(1)
link.sendall(os.uname().release.encode())
"""
PROBE_COMMAND = ("python3", "-I", "-S", "-c", _INSIDE)
"""What the container of a probe runs; it expects the probe's directory at /probe."""


@dataclass(frozen=True, slots=True)
class RuntimeProbe:
    runtime: str
    """Its name in messages."""
    spec: ContainerSpec
    directory: Path
    """Made for the container to look at, and removed again."""

    async def run(self, engine: Engine, timeout_s: float) -> str:
        """Return the kernel's release inside. If sandboxes cannot work, raise EngineRefused with the remedy."""
        shutil.rmtree(self.directory, ignore_errors=True)  # left by a crash
        self.directory.mkdir(parents=True)
        self.directory.chmod(0o755)
        self._show("old")
        place = os.open(self.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # by descriptor, because a socket's address is limited to 107 bytes and the data directory's path may be longer
        address = f"/proc/self/fd/{place}/socket"
        try:
            with anyio.fail_after(timeout_s):
                async with await anyio.create_unix_listener(address, mode=0o666) as listener:
                    return await self._launch(engine, listener)
        except TimeoutError:
            raise EngineUnavailable(f"{self._cannot}: a container got no answer within {timeout_s:g} s") from None
        finally:
            os.close(place)
            shutil.rmtree(self.directory, ignore_errors=True)

    async def _launch(self, engine: Engine, listener: SocketListener) -> str:
        try:
            container = await engine.launch(self.spec)
        except EngineRefused as error:
            raise EngineRefused(f"{self._cannot}: {str(error).removeprefix('cannot launch: ')}") from None
        try:
            async with await self._await_connection(engine, container, listener) as link:
                return await self._converse(link)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            raise EngineRefused(f"{self._cannot}: a container that worked at first has died") from None
        finally:
            with anyio.move_on_after(_CLEANUP_S, shield=True), suppress(SandboxdError):
                await engine.remove(container.id)

    async def _await_connection(self, engine: Engine, container: Container, listener: SocketListener) -> SocketStream:
        while True:
            with anyio.move_on_after(_LOOK_S):
                return await listener.accept()
            found = await engine.inspect(container.id)
            if found is None or not found.running:
                raise self._explain_death(found)

    async def _converse(self, link: SocketStream) -> str:
        await link.receive()
        self._show("new")
        await link.send(b"!")
        if await link.receive() != b"new":
            raise EngineRefused(
                f"{self._cannot}: its containers do not see that a mounted file was replaced, so memory would never "
                "change; for gVisor, remove --file-access-mounts=exclusive from its arguments"
            )
        await link.send(b"!")
        return (await link.receive()).decode()

    def _show(self, text: str) -> None:
        draft = self.directory / "draft"
        draft.write_text(text)
        draft.chmod(0o644)
        draft.rename(self.directory / "text")

    def _explain_death(self, container: Container | None) -> EngineRefused:
        if container is not None and container.exit_code == _NO_CONNECTION:
            why = "its containers cannot connect to the daemon's unix socket"
            return EngineRefused(f"{self._cannot}: {why}; for gVisor, add --host-uds=open to its arguments")
        how = "" if container is None else f" ({container.cause}, exit code {container.exit_code})"
        return EngineRefused(f"{self._cannot}: a container died at start{how}; look at the engine's log")

    @property
    def _cannot(self) -> str:
        return f"cannot use the runtime {self.runtime}"


async def check_runtime(engine: Engine, settings: Settings, *, instance: str, state_dir: Path) -> str:
    """Return the weaknesses of the containers' runtime, if any. Raise EngineRefused if they cannot work.

    Only a runtime other than the usual ones is tried, and only with an image that the engine has.
    """
    runtime = await engine.find_runtime(settings.runtime)
    image = resolve_image(settings.image, engine.name)
    if runtime is None or runtime in ORDINARY_RUNTIMES or not await engine.has_image(image):
        return ""
    directory = state_dir / "runtime-probe"
    spec = ContainerSpec(
        name=f"sandboxd-probe-{uuid.uuid4().hex}",
        image=image,
        command=PROBE_COMMAND,
        uid=settings.uid,
        gid=settings.gid,
        labels={LABEL_INSTANCE: instance},
        mounts=(Mount(directory, "/probe", read_only=True),),
        limits=settings.limits,
        runtime=settings.runtime,
    )
    release = await RuntimeProbe(runtime, spec, directory).run(engine, settings.start_timeout_s)
    is_gvisor = release == "4.4.0" or "gvisor" in release  # the names that its older and newer versions report
    if is_gvisor and settings.limits.pids < GVISOR_PIDS:
        return (
            f"{runtime} is gVisor, whose own threads count as processes of a sandbox, and a sandbox dies at its limit "
            f"of {settings.limits.pids}; set SANDBOXD_LIMITS__PIDS to {GVISOR_PIDS} or more"
        )
    return ""
