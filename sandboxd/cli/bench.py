"""`bench`: the speed of this daemon on this machine, as a small table."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable
from typing import Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Tenant
from sandboxd.cli.output import print_json, print_table


def bench(
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=100_000, help="Number of calls of each kind.")
    ] = 200,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Measure the speed of calls: create a sandbox, time calls in it, remove it.

    Example: sandboxd bench --count 500
    """
    session = f"bench-{secrets.token_hex(4)}"
    with connected(daemon, tenant, json) as client:
        started = time.perf_counter()
        try:
            client.ensure_sandbox(session)
            client.exec(session, ["true"])
            first_ms = (time.perf_counter() - started) * 1000
            content = b"x" * 4096
            path = "/workspace/bench"
            rows = [
                _measure("request alone", count, client.health),
                _measure("command", count, lambda: client.exec(session, ["true"])),
                _measure("shell command", count, lambda: client.exec(session, "true")),
                _measure("write 4 KB", count, lambda: client.write_file(session, path, content)),
                _measure("read 4 KB", count, lambda: client.read_file(session, path)),
            ]
        finally:
            client.destroy_sandbox(session)
    if json:
        results = {name: {"p50_ms": p50, "p95_ms": p95} for name, p50, p95 in rows}
        print_json({"count": count, "first_result_ms": round(first_ms, 3), "results": results})
        return
    table = [("sandbox and first result", f"{first_ms:.1f}", "")]
    table += [(name, f"{p50:.2f}", f"{p95:.2f}") for name, p50, p95 in rows]
    print_table(("what", "p50 ms", "p95 ms"), table)


def _measure(name: str, count: int, act: Callable[[], object]) -> tuple[str, float, float]:
    took = []
    for _ in range(count):
        started = time.perf_counter()
        act()
        took.append((time.perf_counter() - started) * 1000)
    took.sort()
    return name, round(statistics.median(took), 3), round(took[int(len(took) * 0.95)], 3)
