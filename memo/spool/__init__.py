"""Spools: byte stores keyed by id; and artifacts, through which a model queries one in bounded answers."""

from memo.spool.block_reader import BlockReader, LazyReader
from memo.spool.byte_store import ByteStore, MediaReader, SpoolBytes, SpoolReader
from memo.spool.disk_spool import DiskSpool
from memo.spool.in_memory_spool import BytesReader, InMemorySpool
from memo.spool.spooled_artifact import Excerpt, SpooledArtifact
from memo.spool.store_spool import StoreSpool

__all__ = [
    "BlockReader",
    "ByteStore",
    "BytesReader",
    "DiskSpool",
    "Excerpt",
    "InMemorySpool",
    "LazyReader",
    "MediaReader",
    "SpoolBytes",
    "SpoolReader",
    "SpooledArtifact",
    "StoreSpool",
]
