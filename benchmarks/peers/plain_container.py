"""How a container of the docker peers is run: no network and an init process that reaps, nothing else.

Less than what a sandbox of ours gets, so the comparison never favours us.
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
    """The archive that the engine's file call takes."""
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
