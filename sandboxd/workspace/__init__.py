"""Workspaces: the directory of each sandbox, limited in bytes and files."""

from sandboxd.workspace.images import CopyProgress
from sandboxd.workspace.limit import inode_limit, is_over
from sandboxd.workspace.workspaces import Workspaces, temporary_of

__all__ = ["CopyProgress", "Workspaces", "inode_limit", "is_over", "temporary_of"]
