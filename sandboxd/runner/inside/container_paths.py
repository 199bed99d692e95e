"""The directories of a container that belong to its agent, which of them are writable, and the port of its proxy.

Constants for both sides.
"""

from __future__ import annotations

WORKSPACE = "/workspace"
MEMO = "/workspace/memo"
SKILLS = "/skills"
TMP = "/tmp"  # noqa: S108  # a path inside the container
VAR_TMP = "/var/tmp"  # noqa: S108

ROOTS = (WORKSPACE, SKILLS, TMP, VAR_TMP)
READ_ONLY = (MEMO, SKILLS)
NAMES_OF_ROOTS = f"{', '.join(ROOTS[:-1])} and {ROOTS[-1]}"

PROXY_PORT = 3128
"""Where a sandbox with network access finds its HTTP proxy, on 127.0.0.1."""
