"""The filesystem store: memory as plain files in a directory that people may edit."""

from memo.stores.filesystem.store import FilesystemStore

__all__ = ["FilesystemStore"]
