"""Files of a sandbox that has no call for them: an agent writes and reads them with a command, so this does too."""

from __future__ import annotations

from collections.abc import Sequence


class FilesByCommand:
    async def run(self, command: Sequence[str]) -> str:
        raise NotImplementedError

    async def write(self, path: str, content: bytes) -> None:
        await self.run(["sh", "-c", 'printf %s "$1" > "$2"', "sh", content.decode(), path])

    async def read(self, path: str) -> bytes:
        return (await self.run(["cat", path])).encode()
