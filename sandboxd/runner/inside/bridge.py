"""Starts the bridge of a context: `python3 bridge.py SOCKET`, with the Python of the image.

Unlike the runner it uses the image's packages, so the names of the runner's modules must not shadow theirs.
"""

from __future__ import annotations

import importlib.util
import json
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NEEDED = ("ipykernel", "jupyter_client", "zmq")
UNSUPPORTED = 3


def main() -> int:
    server: Any = __import__("server")  # a sibling, because a script's directory is the first place of its modules
    del sys.path[0]
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(json.dumps({"bridge": "unsupported", "missing": missing}), flush=True)
        return UNSUPPORTED
    return int(server.load("kernel_bridge").main(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
