"""How the docker peers run a container: no network, an init process that reaps, and nothing else.

That is less than our sandboxes do, so the comparison never favours us.
"""

from __future__ import annotations

import io
import tarfile

from benchmarks.peers import Options

RUN_FLAGS = ("--rm", "--init", "--network", "none")


def labels_of(options: Options) -> dict[str, str]:
    name, _, value = options.label.partition("=")
    return {name: value}


def tar_of(name: str, content: bytes) -> bytes:
    """Return the archive that the engine's file call expects."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        member.uid = member.gid = 10001
        tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def content_of(packed: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        member = tar.extractfile(tar.getmembers()[0])
        assert member is not None
        return member.read()
