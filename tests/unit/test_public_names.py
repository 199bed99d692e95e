"""The public names of every package: what callers may import. Everything else is private.

A name that is added or removed here changes the library's interface, so it is changed on purpose and in the changelog.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PUBLIC: dict[str, str] = {
    "memo": """
        ABSENT ANY AgentId ArtifactKey Author Capabilities Change CompactionOptions Document DocumentKey
        DocumentName FilesystemStore InMemoryStore MemoError Revision SQLiteStore Scope Session SessionId
        SessionMeta SessionRef StoreLimits StoreOptions TenantId Usage UserId capabilities_of
        compact_tool_results open_store register_scheme
    """,
    "memo.consolidation": """
        Activity Backoff Budget BudgetSpent Bullet ConsolidationLedger ConsolidationSettings Correction
        EmbeddedSummariser Failure LedgeredStore Outcome Part PendingUser Policy ProfileDraft ProfileRefused Progress
        RunResult ServiceConfig SessionRevision Settlement SettlementWriter Source Standing Summariser
        SummariserSettings UserMemoryConsolidationService UserMirrors UserState Verdict Why conversation_summary
        decide make_summariser with_ledger
    """,
    "memo.consolidation.english": "CurrentStatements MessageReader own_sentences",
    "memo.consolidation.summarisers": """
        BadAnswer EmbeddedSummariser Fact ProfileRequest SessionDraft SessionSummary Summariser SummariserError
        SummariserSettings SummariserUnavailable conversation_summary make_summariser
    """,
    "memo.primitives": """
        Identity InvalidIdentity InvalidMedia InvalidMemory InvalidMessage InvalidPrimitive InvalidRetrievable
        InvalidThought InvalidTokenizable InvalidToolCall Media Memory Message Primitive Readers Retrievable
        StashEntry Thought Tokenizable ToolCall tool_call_checksum
    """,
    "memo.spool": """
        BlockReader ByteStore BytesReader DiskSpool Excerpt InMemorySpool LazyReader MediaReader SpoolBytes
        SpoolReader SpooledArtifact StoreSpool
    """,
    "memo.steps": """
        METHODS Handlers InvalidStep InvalidStepRecord RunTaken StepDiverged StepJournal StepMessage StepPart
        StepRecord StepSandbox StepSession StepSetup StorageCall StorageStep Workflow check_handlers check_journal
        local_storage record_of store_handlers
    """,
    "memo.stores": "BaseStore FilesystemStore InMemoryStore SQLiteStore StoreOptions",
    "memo.stores.filesystem": "FilesystemStore",
    "memo.stores.in_memory": "InMemoryStore",
    "memo.stores.sqlite": "SQLiteStore",
    "memo.testing": """
        BrokenPromise check_callbacks check_change_feed check_handlers check_journal check_ledger
        check_orchestration check_provider check_session_store check_trace_store
    """,
    "memo.turn": """
        AbortSignal AlreadySignalled Delta DispatchContext ExecutorError FlushError ForeignOwner Ghost
        InvalidTurnContext InvalidTurnRunnerConfig IterationLimit PipelineError RawTurnContext Reporter
        StreamSealed Tool ToolRegistry TurnContext TurnError TurnResult TurnRunner TurnSet UnitOfWork
        artifact_tools check_callbacks noop_callbacks store_callbacks
    """,
    "memo.wrap": "LimitProvider LogProvider RetryProvider TimeoutProvider",
    "sandboxd": "SandboxManager",
    "sandboxd.client": """
        AnswerLost ArchiveSummary Artifact AsyncClient AsyncCommandHandle AsyncForwarder AsyncSandbox AsyncTerminal
        AsyncTunnel Client CommandHandle Compaction Consolidated ConsolidationFailure ConsolidationState Context Copied
        DaemonUnreachable Document DocumentInfo Event ExecOutput ExecResult FileEvent FileInfo ForkView Forwarder
        ListeningPort MirrorFile Preview Process ProcessOutput RefusedWrite Revision RunOutcome RunOutput RunResult
        Sandbox SandboxView Session ShortenedMessages SnapshotProgress SnapshotView Stats Terminal ToolDescription
        ToolResult Tunnel WriteIncomplete Written
    """,
    "sandboxd.engine.bubblewrap": "BubblewrapEngine",
    "sandboxd.engine.docker": "DockerEngine find_socket",
    "sandboxd.history": "SOURCE EventFilter EventHistory SessionOwner",
    "sandboxd.memory": "Committed Key Memory Queued WriteConflict WriteOutcomeUnknown",
    "sandboxd.tools": "PreparedCall Tool ToolHints Toolbox run_tool",
    "sandboxd.workspace": "CopyProgress Workspaces inode_limit is_over temporary_of",
}


def packages(root: str) -> set[str]:
    return {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / root).rglob("__init__.py")}


def test_every_package_of_memo_is_listed() -> None:
    assert packages("memo") == {name for name in PUBLIC if name.partition(".")[0] == "memo"}


def test_a_package_of_the_daemon_that_is_not_listed_offers_only_its_modules() -> None:
    offering = {name for name in packages("sandboxd") if hasattr(import_module(name), "__all__")}
    assert offering == {name for name in PUBLIC if name.partition(".")[0] == "sandboxd"}


def test_no_module_imports_a_private_name_of_another() -> None:
    offenders = []
    for root in ("memo", "sandboxd"):
        for path in sorted((ROOT / root).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (
                    node.level or str(node.module).startswith(("memo", "sandboxd"))
                ):
                    private = [alias.name for alias in node.names if alias.name.startswith("_")]
                    offenders += [f"{path.relative_to(ROOT)}: {name}" for name in private]
    assert offenders == []


@pytest.mark.parametrize("package", PUBLIC)
def test_a_package_offers_exactly_its_public_names(package: str) -> None:
    module = import_module(package)
    assert sorted(module.__all__) == sorted(PUBLIC[package].split())
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_the_daemon_uses_only_public_names_of_memo() -> None:
    """A module directly below `memo` is public; in a package, only its public names are."""
    offenders = []
    for path in sorted((ROOT / "sandboxd").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "memo":
                offenders += [f"{path.relative_to(ROOT)}: {name}" for name in _private_names(node)]
    assert offenders == []


def _private_names(node: ast.ImportFrom) -> list[str]:
    module = str(node.module)
    return [f"{module}.{alias.name}" for alias in node.names if not _is_public(module, alias.name)]


def _is_public(module: str, name: str) -> bool:
    if name in PUBLIC.get(module, "").split() or f"{module}.{name}" in PUBLIC:
        return True
    path = Path(*module.split("."))
    if module == "memo":
        return (ROOT / path / f"{name}.py").exists()
    return path.parts[:-1] == ("memo",) and (ROOT / path).with_suffix(".py").exists() and not name.startswith("_")
