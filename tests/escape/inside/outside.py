"""Probes of the outside: networks, engine sockets, and texts that belong to the host."""

from __future__ import annotations

import errno
import glob
import os
import re
import signal
import socket
import stat
from collections.abc import Iterator

from doors import PROBES, Outcome, probe, read_text, refused_in_child


@probe("no interface but lo")
def interfaces() -> Outcome:
    names = {name for _, name in socket.if_nameindex()}
    return names <= {"lo"}, " ".join(sorted(names))


@probe("no route but lo")
def routes() -> Outcome:
    lines = read_text("/proc/net/route").splitlines()[1:] + read_text("/proc/net/ipv6_route").splitlines()
    found = [line for line in lines if line.split()[0 if "\t" in line else -1] != "lo"]
    return not found, str(len(found))


@probe("no DNS")
def name_lookup() -> Outcome:
    def attempt() -> int:
        signal.alarm(10)
        try:
            socket.getaddrinfo("example.com", 443)
        except OSError:
            return errno.EPERM
        return 0

    ok, detail = refused_in_child(attempt)
    servers = re.findall(r"^nameserver\s+(\S+)", read_text("/etc/resolv.conf"), re.M)
    return ok and all(server.startswith("127.") or server == "::1" for server in servers), f"{detail} {servers}"


for _address in ("169.254.169.254", "1.1.1.1", "172.17.0.1"):

    def connect_out(address: str = _address) -> Outcome:
        with socket.socket(type=socket.SOCK_DGRAM) as outside:  # looks up a route and sends nothing
            code = outside.connect_ex((address, 80))
        return code == errno.ENETUNREACH, errno.errorcode.get(code, str(code))

    PROBES[f"{_address} is out of reach"] = connect_out


@probe("no engine socket")
def engine_sockets() -> Outcome:
    names = ("docker.sock", "podman/podman.sock", "containerd/containerd.sock", "crio/crio.sock", "sandboxd.sock")
    found = [
        f"{top}/{name}" for top in ("/run", "/var/run", "/host") for name in names if os.path.exists(f"{top}/{name}")
    ]
    found += [line.split()[-1] for line in read_text("/proc/net/unix").splitlines() if "containerd" in line]
    return not found, " ".join(found[:5])


def texts_in_sight() -> Iterator[tuple[str, str]]:
    """Return everything readable that could contain a text from outside: environments, mounts, names, small files."""
    yield "environment", "\n".join(f"{name}={value}" for name, value in os.environ.items())
    yield "hostname", socket.gethostname()
    places = ["/etc", "/run", "/tmp", "/dev/shm", "/workspace", "/home", "/root", "/var/run", "/srv", "/mnt", "/opt"]
    for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
        yield path, read_text(path)
    for path in ("mountinfo", "mounts", "cgroup", "mountstats", "limits"):
        yield path, read_text(f"/proc/self/{path}")
    for place in places:
        for top, _, files in os.walk(place):
            for name in files:
                path = os.path.join(top, name)
                yield path, path
                if stat.S_ISREG(os.lstat(path).st_mode) and os.lstat(path).st_size < 1 << 20:
                    yield path, read_text(path)
