"""The daemon that gives every AI agent a hardened container and its memory as plain files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandboxd.sandboxes.manager import SandboxManager

__all__ = ["SandboxManager"]


def __getattr__(name: str) -> Any:
    """Import the manager on first use: the command line never needs it, and must start fast."""
    if name == "SandboxManager":
        from sandboxd.sandboxes.manager import SandboxManager

        return SandboxManager
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
