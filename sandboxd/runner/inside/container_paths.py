"""The directories of a container that belong to its agent, and which of them are writable. Constants for both sides."""

from __future__ import annotations

WORKSPACE = "/workspace"
MEMO = "/workspace/memo"
SKILLS = "/skills"
TMP = "/tmp"  # noqa: S108  # a path inside the container
VAR_TMP = "/var/tmp"  # noqa: S108

ROOTS = (WORKSPACE, SKILLS, TMP, VAR_TMP)
READ_ONLY = (MEMO, SKILLS)
NAMES_OF_ROOTS = f"{', '.join(ROOTS[:-1])} and {ROOTS[-1]}"
