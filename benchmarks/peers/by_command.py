"""Files in a sandbox without a file API: written and read with a command, as an agent would."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence


class FilesByCommand(ABC):
    @abstractmethod
    async def run(self, command: Sequence[str]) -> str:
        """Run a command in the sandbox and return what it printed."""

    async def write(self, path: str, content: bytes) -> None:
        await self.run(["sh", "-c", 'printf %s "$1" > "$2"', "sh", content.decode(), path])

    async def read(self, path: str) -> bytes:
        return (await self.run(["cat", path])).encode()
