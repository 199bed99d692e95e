"""The first process of a fake container: it becomes the container's command, with host directories as its mounts.

Started as `python3 -I -S -B entry.py PLAN`. There is no mount namespace, so a path of the container is replaced by the
host directory that is mounted there: in the command line, and in the calls that the runner takes. The runner itself is
the real one.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


class MountTable:
    """The container's directories and the host directories that stand for them."""

    def __init__(self, mounts: list[tuple[str, str]]) -> None:
        self._sources = {target: os.path.realpath(source) for target, source in mounts}
        longest_first = sorted(self._sources, key=len, reverse=True)
        names = "|".join(map(re.escape, longest_first)) or "$."
        self._targets = re.compile(rf"(?<![\w./-])({names})(?![\w.-])")
        self._back = sorted(self._sources.items(), key=lambda mount: len(mount[1]), reverse=True)

    def host_path(self, path: str) -> str:
        """Return the host path that stands for a path; return a host path unchanged."""
        found = self._targets.match(path)
        if found is None or self._is_on_host(path):
            return path
        return self._sources[found[1]] + path[found.end() :]

    def host_text(self, text: str) -> str:
        """Replace every path of the container in a command line."""
        return self._targets.sub(lambda found: self._sources[found[1]], text)

    def container_text(self, text: bytes) -> bytes:
        """Replace every host path of a mount by the container's name of it."""
        for target, source in self._back:
            text = text.replace(source.encode(), target.encode())
        return text

    def host_roots(self, roots: tuple[bytes, ...]) -> tuple[bytes, ...]:
        inside = [source for target, source in self._sources.items() if target.startswith(_texts(roots))]
        return tuple(source.encode() for source in inside)

    def _is_on_host(self, path: str) -> bool:
        return any(path == source or path.startswith(source + "/") for source in self._sources.values())


def _texts(paths: tuple[bytes, ...]) -> tuple[str, ...]:
    return tuple(path.decode() for path in paths)


def main(plan: dict[str, Any]) -> int:
    """Become the command. Its start is reported by the end of `status`, a failure by the reason written there."""
    resource.setrlimit(plan["limit"], (plan["mark"], resource.getrlimit(plan["limit"])[1]))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # it ends with the tests, however they end
    status = plan["status"]
    os.set_inheritable(status, False)
    mounts = MountTable(plan["mounts"])
    command = [mounts.host_text(word) for word in plan["command"]]
    if plan["is_runner"]:
        os.close(status)
        return serve_runner(command[-2], command[-1], mounts, plan["mark"], plan["marks"])
    try:
        os.execvpe(command[0], command, {"PATH": os.defpath, **plan["env"]})
    except OSError as error:
        os.write(status, (error.strerror or "unknown").encode())
    return 127


def serve_runner(server_file: str, run_dir: str, mounts: MountTable, mark: int, marks: int) -> int:
    """Run the real runner on the container's directories, among the host's other processes."""
    sys.path.insert(0, os.path.dirname(server_file))
    server: Any = __import__("server")
    runner_module = server.load("runner")
    find, paths, spawn, tree, wire = (server.load(name) for name in ("find", "paths", "spawn", "tree", "wire"))

    # Its paths.
    encode_path, enter, glob = paths.encode_path, paths.enter, find.glob
    roots = mounts.host_roots(paths.ROOTS)
    paths.ROOTS = roots
    paths.is_inside.__defaults__ = (roots,)
    workspace = mounts.host_path("/workspace")
    paths._READ_ONLY = (f"{workspace}/memo".encode(), *map(os.fsencode, map(mounts.host_path, paths.READ_ONLY)))
    paths.encode_path = lambda path: encode_path(mounts.host_path(path))
    paths.enter = lambda directory: enter(mounts.host_path(directory))
    spawn.BASE_ENV["HOME"] = mounts.host_path(spawn.BASE_ENV["HOME"])

    def find_files(pattern: str, path: str, limit: int) -> tuple[dict[str, Any], bytes]:
        head, found = glob(pattern, path, limit)
        return head, mounts.container_text(found)

    find.glob = find_files

    # Its processes. In a container there are no others; here they are distinguished by their marks.
    mark_of = tree.mark_of

    def mark_or_none(pid: int) -> int | None:
        found = mark_of(pid)
        return 0 if found is None and os.path.exists(f"/proc/{pid}") else found  # another user's process

    def count_own(own: int) -> int:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != own]
        return sum(
            proc is not None and proc.is_alive and mark < proc.mark < mark + marks for proc in map(tree.read_proc, pids)
        )

    tree.mark_of = mark_or_none
    runner_module.count_others = count_own

    class HostRunner(runner_module.Runner):  # type: ignore[misc, name-defined]
        def __init__(self, run_dir: str, secret: bytes) -> None:
            super().__init__(run_dir, secret)
            self.spawner._marks._last = mark
            self._searches: set[int] = set()
            self._send = self.connection.send
            self.connection.send = self._send_in_container_terms

        def _exec(self, call: int, head: dict[str, Any], data: bytes) -> None:
            # A search may run as a command, which the runner itself builds from host paths.
            super()._exec(call, head if call in self._searches else _on_host(head), data)

        def _start_process(self, call: int, head: dict[str, Any], data: bytes) -> None:
            super()._start_process(call, _on_host(head), data)

        def _grep(self, call: int, head: dict[str, Any], data: bytes) -> None:
            self._searches.add(call)
            super()._grep(call, head, data)

        def _send_in_container_terms(self, frame: bytes) -> None:
            self._send(self._shown(frame) if self._searches else frame)

        def _shown(self, frame: bytes) -> bytes:
            kind, call, head_size, _ = wire.HEADER.unpack_from(frame)
            if call not in self._searches or kind not in (wire.EXITED, wire.ERROR):
                return frame
            self._searches.remove(call)
            if kind == wire.ERROR:
                return frame
            start = wire.HEADER_BYTES + head_size
            flags, code, duration_ms, size = wire.read_exited(frame[wire.HEADER_BYTES : start])
            stdout, stderr = mounts.container_text(frame[start : start + size]), frame[start + size :]
            return bytes(wire.pack_exited(call, flags, code, duration_ms, stdout, stderr))

    def _on_host(head: dict[str, Any]) -> dict[str, Any]:
        if "shell" in head:
            return {**head, "shell": mounts.host_text(head["shell"])}
        return {**head, "argv": [mounts.host_text(word) for word in head["argv"]]}

    runner_module.Runner = HostRunner
    # By descriptor, because a socket's address is limited to 107 bytes, which a test's directory may exceed.
    directory = os.open(run_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return int(server.main(f"/proc/self/fd/{directory}"))


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
