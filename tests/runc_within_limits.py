#!/usr/bin/env python3
"""runc for a host that may not raise its own resource limits: a container's higher limits are left out.

Podman requests a million processes, which requires CAP_SYS_RESOURCE; a host inside a virtual machine may lack it.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
from pathlib import Path


def drop_limits_above_ours(config: Path) -> None:
    container = json.loads(config.read_text())
    limits = container["process"].get("rlimits", [])
    container["process"]["rlimits"] = [limit for limit in limits if limit["hard"] <= ours(limit["type"])]
    config.write_text(json.dumps(container))


def ours(kind: str) -> float:
    hard = resource.getrlimit(getattr(resource, kind))[1]
    return math.inf if hard == resource.RLIM_INFINITY else hard


if __name__ == "__main__":
    if "create" in sys.argv:
        drop_limits_above_ours(Path(sys.argv[sys.argv.index("--bundle") + 1]) / "config.json")
    os.execvpe("runc", ["runc", *sys.argv[1:]], {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin"})
