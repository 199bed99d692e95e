"""Workspaces: each sandbox's own directory, limited in bytes and files."""

from sandboxd.workspace.limit import inode_limit, is_over
from sandboxd.workspace.workspaces import Workspaces

__all__ = ["Workspaces", "inode_limit", "is_over"]
