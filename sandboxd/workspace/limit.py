"""The limit of a workspace, in bytes and files. Pure: a filesystem enforces it, or a caller that measures usage."""

from __future__ import annotations

MIB = 1024 * 1024
_INODES_PER_MIB = 64
_LEAST_INODES = 1024


def inode_limit(disk_mb: int) -> int:
    """One file per 16 KiB, and never fewer than a small project needs."""
    return max(disk_mb * _INODES_PER_MIB, _LEAST_INODES)


def is_over(usage_bytes: int, inodes: int, disk_mb: int) -> bool:
    return usage_bytes > disk_mb * MIB or inodes > inode_limit(disk_mb)
