"""The root filesystem of a bubblewrap container: the steps that build its stage, and the arguments for bwrap.

Pure except for listing the image's top directory. The image is "host", which is the host's programs with a generated
`/etc`, or the path of a directory. Of the host's /home, /root, /var, /opt and /etc only public certificates and the
dynamic linker's cache are shown.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sandboxd.engine.protocol import ContainerSpec, Mount
from sandboxd.engine.spec import HARDENING, Hardening, environment_of
from sandboxd.errors import EngineRefused
from sandboxd.runner.inside.container_paths import WORKSPACE

HOST_IMAGE = "host"
_PROGRAMS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_RESERVED = frozenset({"dev", "proc", "sys", "tmp", "run"})
_COPIED = ("ld.so.cache", "ld.so.conf", "localtime", "protocols", "services", "mime.types", "ssl/openssl.cnf")
_SHOWN = ("alternatives", "ssl/certs")
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": WORKSPACE,
    "LANG": "C.UTF-8",
}
"""The environment that an image would set; the spec's own values override it."""
_SPARE_PLACE = "/usr/local/sbin"
"""It is on the PATH of every command, and empty on nearly every host."""
_SOURCES = "sandbox"
"""The directory in the stage that holds what bwrap binds into the container."""

Step = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Rootfs:
    steps: tuple[Step, ...]
    arguments: tuple[str, ...]


def plan_rootfs(spec: ContainerSpec, *, ready_fd: int, hardening: Hardening = HARDENING) -> Rootfs:
    """Return the arguments that build the container's file tree. bwrap reads `ready_fd` after the last mount."""
    _check(spec)
    steps: list[Step] = [*_stage_programs(), ("tree", "/proc", "proc"), ("tree", "/dev", "dev"), ("dir", "", "tmp")]
    arguments: list[str] = []
    reserved = _RESERVED | {parts[1] for parts in map(_parts, spec.mounts) if not _has_place(spec.image, parts)}

    if spec.image == HOST_IMAGE:
        steps += _etc_steps(spec)
        arguments += _show_entries("/", [name for name in _PROGRAMS if name not in reserved])
        arguments += ["--ro-bind", f"/{_SOURCES}/etc", "/etc"]
        if (python3 := _python_without_a_plain_name()) is not None:
            steps.append(("link", python3, f"{_SOURCES}/programs/python"))
            arguments += ["--ro-bind", f"/{_SOURCES}/programs", _SPARE_PLACE]
    else:
        steps.append(("bind", spec.image, f"{_SOURCES}/image"))
        names = sorted(set(os.listdir(spec.image)) - reserved)
        arguments += _show_entries(spec.image, names, shown_as=f"/{_SOURCES}/image")

    arguments += ["--proc", "/proc", *_mask_arguments(hardening)]
    for name, size_mb, target in (("tmp", hardening.tmp_size_mb, "/tmp"), ("shm", hardening.shm_size_mb, "/dev/shm")):  # noqa: S108
        verb = "exec_tmpfs" if name == "tmp" and spec.tmp_exec else "tmpfs"
        steps.append((verb, f"mode={hardening.tmp_mode},size={size_mb}m", f"{_SOURCES}/{name}"))
        if name == "shm":
            arguments += ["--dev", "/dev"]
        arguments += ["--bind", f"/{_SOURCES}/{name}", target]
    arguments += ["--remount-ro", "/dev", "--dir", "/run"]
    # A directory is mounted before the mounts inside it.
    for number, mount in enumerate(sorted(spec.mounts, key=lambda mount: len(_parts(mount)))):
        steps.append(("bind", str(mount.source), f"{_SOURCES}/mounts/{number}"))
        arguments += ["--ro-bind" if mount.read_only else "--bind", f"/{_SOURCES}/mounts/{number}", mount.target]
    arguments += ["--file", str(ready_fd), "/run/ready", "--remount-ro", "/"]
    return Rootfs(tuple(steps), tuple(arguments))


def isolation_arguments(spec: ContainerSpec, hardening: Hardening = HARDENING) -> list[str]:
    """Return the arguments for namespaces, identity and environment: everything that is not a file."""
    arguments = ["--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-net", "--unshare-ipc"]
    arguments += ["--unshare-uts", "--unshare-cgroup", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    arguments += ["--hostname", hardening.hostname, "--uid", str(spec.uid), "--gid", str(spec.gid)]
    arguments += ["--chdir", "/", "--clearenv"]
    environment_of(spec)  # raises for a value that no process could receive
    for name, value in {**_ENVIRONMENT, **spec.env}.items():
        arguments += ["--setenv", name, value]
    return arguments


def is_image(image: str) -> bool:
    return image == HOST_IMAGE or (os.path.isabs(image) and os.path.isdir(image))


def _check(spec: ContainerSpec) -> None:
    if not spec.command:
        raise EngineRefused("cannot launch: the command is empty")
    if spec.runtime is not None:
        raise EngineRefused(
            f"cannot launch with the runtime {spec.runtime}: bubblewrap has no runtimes; leave it empty"
        )
    if not is_image(spec.image):
        raise EngineRefused(f'cannot launch from {spec.image}: an image is "host" or the path of a directory here')
    for mount in spec.mounts:
        parts = _parts(mount)
        if len(parts) < 2 or parts[0] != "/" or ".." in parts:
            raise EngineRefused(f"cannot launch: {mount.target} is not an absolute path below the root")
        if not mount.source.is_dir():
            raise EngineRefused(f"cannot launch: {mount.source} is not a directory, so it cannot be mounted")


def _parts(mount: Mount) -> tuple[str, ...]:
    return PurePosixPath(mount.target).parts


def _has_place(image: str, parts: tuple[str, ...]) -> bool:
    """Return whether this path of the image can be a mount point: it is visible, and no part of it is a link."""
    if image == HOST_IMAGE or len(parts) < 3:
        return False
    places = [Path(image, *parts[1:end]) for end in range(2, len(parts) + 1)]
    return all(place.is_dir() and not place.is_symlink() for place in places)


def _python_without_a_plain_name() -> str | None:
    """Return the host's `python3` if the host has no `python` and there is a directory for a link of that name."""
    places = [Path(place) for place in _ENVIRONMENT["PATH"].split(":")]
    if any(os.path.lexists(place / "python") for place in places):
        return None
    spare = Path(_SPARE_PLACE)
    if spare.is_symlink() or not spare.is_dir() or any(spare.iterdir()):
        return None
    return next((str(place / "python3") for place in places if (place / "python3").exists()), None)


def _stage_programs() -> list[Step]:
    """What bwrap itself needs to run inside the stage."""
    steps: list[Step] = []
    for name in _PROGRAMS:
        path = Path("/", name)
        if path.is_symlink():
            steps.append(("link", os.readlink(path), name))
        elif path.is_dir():
            steps.append(("tree", str(path), name))
    return steps


def _show_entries(top: str, names: list[str], shown_as: str = "") -> list[str]:
    arguments: list[str] = []
    for name in names:
        path = Path(top, name)
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(mode):
            arguments += ["--symlink", os.readlink(path), f"/{name}"]
        elif stat.S_ISDIR(mode):
            arguments += ["--ro-bind", f"{shown_as}/{name}", f"/{name}"]
    return arguments


def _mask_arguments(hardening: Hardening) -> list[str]:
    arguments: list[str] = []
    for path in hardening.masked_paths:
        if not path.startswith("/proc/") or not os.path.exists(path):
            continue  # there is no /sys in the container at all
        if os.path.isdir(path):
            arguments += ["--tmpfs", path, "--remount-ro", path]
        else:
            arguments += ["--ro-bind", "/dev/null", path]
    return arguments


def _etc_steps(spec: ContainerSpec) -> list[Step]:
    texts = {
        "passwd": (
            "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n"
            f"agent:x:{spec.uid}:{spec.gid}:agent:/workspace:/bin/bash\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ),
        "group": f"root:x:0:\nagent:x:{spec.gid}:\nnogroup:x:65534:\n",
        "hosts": f"127.0.0.1 localhost {HARDENING.hostname}\n::1 localhost\n",
        "hostname": f"{HARDENING.hostname}\n",
        "host.conf": "multi on\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
        "resolv.conf": "",
        # A login shell reads this for every command, so it must not start a process.
        "profile": f'export PATH="${{PATH:-{_ENVIRONMENT["PATH"]}}}" LANG="${{LANG:-C.UTF-8}}"\n',
        "bash.bashrc": "",
        "shells": "/bin/sh\n/bin/bash\n",
        "gitconfig": (
            "[user]\n\tname = agent\n\temail = agent@sandbox.invalid\n[init]\n\tdefaultBranch = main\n"
            "[safe]\n\tdirectory = *\n[advice]\n\tdetachedHead = false\n"
        ),
    }
    steps: list[Step] = [("text", text, f"{_SOURCES}/etc/{name}") for name, text in texts.items()]
    steps += [("link", "../usr/lib/os-release", f"{_SOURCES}/etc/os-release")]
    steps += [("link", "/proc/self/mounts", f"{_SOURCES}/etc/mtab")]
    steps += [("copy", f"/etc/{name}", f"{_SOURCES}/etc/{name}") for name in _COPIED if Path("/etc", name).is_file()]
    steps += [("bind", f"/etc/{name}", f"{_SOURCES}/etc/{name}") for name in _SHOWN if Path("/etc", name).is_dir()]
    return steps
