"""The filesystem store: memory as plain files, which any program may edit."""

from memo.stores.filesystem.store import FilesystemStore

__all__ = ["FilesystemStore"]
