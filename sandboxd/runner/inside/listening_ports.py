"""The TCP ports on which processes of the container listen, and which process each belongs to. Reads /proc only.

The agent can open thousands of sockets and descriptors, so what is read is bounded: beyond the bound a port has no
process, or is left out.
"""

from __future__ import annotations

import os

from .marks import mark_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

MAX_PORTS = 1_024
MAX_SOCKETS = 20_000
MAX_DESCRIPTORS = 20_000
_LISTEN = "0A"
_MAPPED = "0000000000000000FFFF0000"
_REACHABLE = frozenset(
    (
        *("00000000", "0100007F"),  # 0.0.0.0 and 127.0.0.1
        *("0" * 32, "0" * 24 + "01000000"),  # :: and ::1
        *(_MAPPED + "00000000", _MAPPED + "0100007F"),
    )
)
"""The addresses, as the kernel prints them, of sockets that loopback reaches."""


def list_ports(own: int, processes: Mapping[int, str], is_cancelled: Callable[[], bool]) -> dict[str, Any]:
    """Return one item for each port that loopback reaches, except `own`, in ascending order.

    `processes` maps marks to the ids of background processes.
    """
    inodes: dict[int, str] = {}
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for port, inode in _listening(path):
            if port != own:
                inodes.setdefault(port, inode)
    ports = sorted(inodes)[:MAX_PORTS]
    owners = _find_owners({inodes[port] for port in ports}, is_cancelled)
    return {"items": [_describe(port, owners.get(inodes[port]), processes) for port in ports]}


def _describe(port: int, pid: int | None, processes: Mapping[int, str]) -> dict[str, Any]:
    item: dict[str, Any] = {"port": port}
    if pid is not None:
        item["pid"] = pid
        process = processes.get(mark_of(pid) or 0)
        if process is not None:
            item["process"] = process
        try:
            with open(f"/proc/{pid}/comm", "rb") as file:
                item["command"] = file.read(64).decode("utf-8", "replace").rstrip("\n")
        except OSError:
            pass  # it has just ended
    return item


def _listening(path: str) -> Iterator[tuple[int, str]]:
    """Yield the port and inode of every listening socket that loopback reaches."""
    if not os.path.exists(path):
        return  # no such protocol in this container
    with open(path, encoding="ascii", errors="replace") as file:
        next(file, None)
        for _number, line in zip(range(MAX_SOCKETS), file):  # noqa: B905 - zip has no strict in 3.9
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTEN:
                address, _, port = fields[1].partition(":")
                if address in _REACHABLE:
                    yield int(port, 16), fields[9]


def _find_owners(inodes: set[str], is_cancelled: Callable[[], bool]) -> dict[str, int]:
    """Return the first process that has each socket, where the runner may look."""
    owners: dict[str, int] = {}
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    left = MAX_DESCRIPTORS
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        if not wanted or left <= 0 or is_cancelled():
            break
        left -= 1
        for target in _links(f"/proc/{name}/fd", left):
            left -= 1
            inode = wanted.pop(target, None)
            if inode is not None:
                owners[inode] = int(name)
    return owners


def _links(directory: str, most: int) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            for _number, entry in zip(range(most), entries):  # noqa: B905
                try:
                    yield os.readlink(entry.path)
                except OSError:
                    continue  # closed in the meantime
    except OSError:
        return  # the process has ended, or the runner may not look
