"""Spools: bytes by id, kept once and read piece by piece; and artifacts, the view that a model has of one."""

from memo.spool.artifact import Excerpt, SpooledArtifact
from memo.spool.contract import ByteStore, MediaReader, SpoolBytes, SpoolReader
from memo.spool.disk import DiskSpool
from memo.spool.in_memory import BytesReader, InMemorySpool
from memo.spool.in_store import StoreSpool

__all__ = [
    "ByteStore",
    "BytesReader",
    "DiskSpool",
    "Excerpt",
    "InMemorySpool",
    "MediaReader",
    "SpoolBytes",
    "SpoolReader",
    "SpooledArtifact",
    "StoreSpool",
]
