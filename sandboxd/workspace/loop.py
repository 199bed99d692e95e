"""Loop devices and mounts, by system call, because starting a program would take longer than the work itself.

The kernel frees a device with its last use, so a crash between any two calls leaks none.
It never opens a file inside what it mounts. Everything here blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import stat
import struct
from pathlib import Path

CONTROL = Path("/dev/loop-control")
_DEVICES = Path("/sys/block")
_LOOP_MAJOR = 7
_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_LO_FLAGS_AUTOCLEAR = 4
_CONFIG_BYTES = 304
_FLAGS_OFFSET = 60
_MS_NOSUID, _MS_NODEV, _MS_NOATIME = 2, 4, 1024
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_ATTACH_TRIES = 256

_OCTAL = re.compile(r"\\([0-7]{3})")
_libc = ctypes.CDLL(None, use_errno=True)


def mount_image(image: Path, target: Path) -> None:
    """Mount an ext4 image on a directory. The device lasts exactly as long as the mount."""
    _mount(*_attach(image), target)


def mount_again(image: Path, target: Path) -> bool:
    """Mount the device that still has this image after an unmount; return whether there is one.

    A container that starts holds a copy of every mount of the host for a moment, and with it the filesystem. Through a
    second device, two filesystems would write the image.
    """
    found = _open_attached(image)
    if found is not None:
        _mount(*found, target)
    return found is not None


def unmount(target: Path, *, lazily: bool = False) -> None:
    _call("umount2", os.fsencode(target), _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazily else 0))


def is_mounted(target: Path) -> bool:
    """Return whether something is mounted on this directory, without opening it."""
    try:
        return target.lstat().st_dev != target.parent.lstat().st_dev
    except FileNotFoundError:
        return False


def parse_mount_points(mountinfo: str) -> list[Path]:
    """Return all mount points, which the kernel lists with spaces and backslashes in octal."""
    points = (line.split(" ")[4] for line in mountinfo.splitlines())
    return [Path(_OCTAL.sub(lambda digits: chr(int(digits[1], 8)), point)) for point in points]


def _mount(device: int, path: str, target: Path) -> None:
    try:
        # noinit_itable: the holes of the image already read as zeros, so there is nothing to initialise.
        _call("mount", path.encode(), os.fsencode(target), b"ext4", _flags(), b"noinit_itable,errors=remount-ro")
    finally:
        os.close(device)  # the mount keeps the device in use; if it failed, this frees the device


def _flags() -> ctypes.c_ulong:
    return ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOATIME)


def _open_attached(image: Path) -> tuple[int, str] | None:
    name = os.fsencode(image.resolve())
    for device in _DEVICES.glob("loop*"):
        if _image_of(device) == name:
            with contextlib.suppress(OSError):  # it is being freed
                opened = _open_device(f"/dev/{device.name}", int(device.name.removeprefix("loop")))
                if _image_of(device) == name:  # from now on it keeps the image, because it is open
                    return opened, f"/dev/{device.name}"
                os.close(opened)
    return None


def _image_of(device: Path) -> bytes | None:
    try:
        return (device / "loop/backing_file").read_bytes().rstrip(b"\n")
    except OSError:
        return None


def _attach(image: Path) -> tuple[int, str]:
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        config = bytearray(_CONFIG_BYTES)
        struct.pack_into("=I", config, 0, backing)
        struct.pack_into("=I", config, _FLAGS_OFFSET, _LO_FLAGS_AUTOCLEAR)
        for _ in range(_ATTACH_TRIES):
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            path = f"/dev/loop{number}"
            device = _open_device(path, number)
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, config)
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
                continue  # another process took this free device first
            return device, path
        raise OSError(errno.EBUSY, "other processes took every free loop device")
    finally:
        os.close(backing)
        os.close(control)


def _open_device(path: str, number: int) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        # The kernel does not manage this /dev, for example inside another container, so make the node here.
        os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(_LOOP_MAJOR, number))
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
