"""OpenAI Agents SDK: a sandbox session, its files, its memory and a snapshot. Needs a running daemon, but no key."""

from __future__ import annotations

import asyncio
import io
import tempfile
from pathlib import Path

from agents.sandbox import LocalSnapshotSpec, Manifest
from agents.sandbox.entries import File

from sandboxd.client import AsyncClient
from sandboxd.integrations.openai_agents import SandboxdSandboxClient, SandboxdSandboxClientOptions


async def main(snapshots: Path) -> None:
    async with AsyncClient() as daemon:
        client = SandboxdSandboxClient(daemon)
        manifest = Manifest(entries={"task.txt": File(content=b"count to three\n")})
        session = await client.create(
            options=SandboxdSandboxClientOptions(user="ada"),
            manifest=manifest,
            snapshot=LocalSnapshotSpec(base_path=snapshots),
        )
        async with session:
            done = await session.exec("cat task.txt; seq 3 | tee numbers.txt | wc -l")
            print(done.stdout.decode().split())
            # Memory is the directory memo/. It is in the store, so it outlives the sandbox and the snapshot.
            await session.write(Path("memo/session/NOTES.md"), io.BytesIO(b"counted to three"))

        # The sandbox is gone; the next one continues with its files.
        async with await client.resume(session.state) as again:
            print((await again.exec("cat numbers.txt memo/session/NOTES.md")).stdout.decode().split("\n"))


# For an agent: RunConfig(sandbox=SandboxRunConfig(client=client, options=SandboxdSandboxClientOptions(user="ada")))
if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(Path(directory)))
