"""`doctor`: what this machine offers, before or beside a running daemon."""

from __future__ import annotations

from dataclasses import asdict

import typer

from sandboxd.cli.options import Json
from sandboxd.cli.output import FAILED, print_json, print_line, print_table
from sandboxd.cli.serve import DataOption, EngineOption, load_settings


def examine(data: DataOption = None, engine: EngineOption = None, json: Json = False) -> None:
    """Say how well sandboxes are isolated on this host, and what to do about it. Exit code 1 if something is missing.

    Example: sandboxd doctor --engine docker
    """
    settings = load_settings(data=data, engine=engine)
    import anyio

    from sandboxd.doctor import examine as examine_host

    findings = anyio.run(examine_host, settings)
    if json:
        print_json({"items": [asdict(finding) for finding in findings]})
    else:
        rows = [(finding.verdict, finding.subject, finding.detail) for finding in findings]
        print_table(("verdict", "subject", "detail"), rows)
        for finding in findings:
            if finding.advice:
                print_line(f"{finding.subject}: {finding.advice}")
    raise typer.Exit(FAILED if any(finding.verdict == "missing" for finding in findings) else 0)
