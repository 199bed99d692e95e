"""The MCP server over a session: its tools, resources and notifications, for the SDK to speak.

It keeps no state of a session: whatever a request needs follows from its binding. It serves both eras of the protocol:
connections that begin with a handshake, and requests that each stand alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated, ServerEvent
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from sandboxd.client import AsyncClient, ToolResult
from sandboxd.client.errors import KNOWN_ERRORS
from sandboxd.errors import LimitReached
from sandboxd.mcp.agent_session import AgentSession
from sandboxd.mcp.binding import Binding, ToolAccess
from sandboxd.mcp.manage_tools import MANAGE_TOOLS
from sandboxd.mcp.memo_tools import MEMO_TOOLS
from sandboxd.mcp.notifier import ConnectionNotifier
from sandboxd.mcp.progress import ProgressReport
from sandboxd.mcp.resource_feed import Listening, ResourceFeed
from sandboxd.mcp.resources import list_resources, list_templates, parse_uri, read_resource
from sandboxd.mcp.scope_keys import CALLS
from sandboxd.mcp.surrogates import restore
from sandboxd.tools import Toolbox
from sandboxd.tools.mistakes import unknown_tool

_log = logging.getLogger(__name__)

MAX_LISTENS = 256
"""The most streams of changes that clients without a handshake may have open, all together."""
MAX_ACTOR_CHARS = 80

_NOTIFIER = "sandboxd.notifier"
_INSTRUCTIONS = (
    "Tools run in a sandbox of this session: a Linux container with the files in /workspace, which persist between "
    "calls. The session's memory is in NOTES.md and TODO.md, the user's in USER.md; the memo_ tools and the memo:// "
    "resources read and write it, and the sandbox shows it read-only below /workspace/memo."
)
_NO_SESSION = (
    "cannot tell which session this request is for: without a handshake, name one in the URL, for example "
    "/mcp?session=research"
)


@dataclass(frozen=True, slots=True)
class Serving:
    """What lasts as long as the server runs."""

    tasks: TaskGroup


Context = ServerRequestContext[Serving, Any]


class SandboxServer(Server[Serving]):
    def __init__(self, client: AsyncClient, bind: Callable[[Context], Binding], version: str) -> None:
        super().__init__(
            "sandboxd",
            version=version,
            title="sandboxd",
            description="A sandbox with tools, and the memory of a session.",
            instructions=_INSTRUCTIONS,
            lifespan=self._run,
            get_tool_input_schema=lambda _name: None,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe,
            on_subscriptions_listen=self._listen,
        )
        self.middleware = [_forgive_arguments]  # without the SDK's tracing
        self.add_notification_handler("notifications/initialized", types.NotificationParams, self._greet)
        self.add_request_handler("server/discover", types.RequestParams, self._discover)
        self._client = client
        self._bind = bind
        self._feed = ResourceFeed(client)
        self._toolbox = Toolbox.discover()
        self._own = {tool.name: tool for tool in (*MEMO_TOOLS, *MANAGE_TOOLS)}
        self._offered = {access: self._offer(access) for access in ToolAccess}
        self._listens: set[ListenHandler] = set()

    def get_capabilities(
        self, notification_options: NotificationOptions | None = None, *args: Any, **options: Any
    ) -> types.ServerCapabilities:
        """Return what the server can do; the SDK cannot know that the list of resources changes."""
        return super().get_capabilities(NotificationOptions(resources_changed=True), *args, **options)

    def end_listens(self) -> None:
        """End every stream of changes, because the daemon drains."""
        for handler in list(self._listens):
            handler.close()

    @asynccontextmanager
    async def _run(self, _: Server[Serving]) -> AsyncIterator[Serving]:
        async with self._feed.run(), anyio.create_task_group() as tasks:
            yield Serving(tasks)
            tasks.cancel_scope.cancel()

    def _offer(self, access: ToolAccess) -> dict[str, types.Tool]:
        tools = {tool.name: (tool.render("mcp"), tool.hints) for tool in self._toolbox.values()}
        own = MEMO_TOOLS if access is not ToolAccess.MANAGE else (*MEMO_TOOLS, *MANAGE_TOOLS)
        tools |= {tool.name: (tool.render(), tool.hints) for tool in own}
        return {
            name: types.Tool.model_validate(rendered)
            for name, (rendered, hints) in tools.items()
            if hints.read_only or access is not ToolAccess.READ_ONLY
        }

    # Tools

    async def _list_tools(self, context: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=list(self._offered[self._bind(context).access].values()))

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        with _until_disconnect(context):
            return _render(await self._call(context, params.name, params.arguments or {}))
        raise MCPError(types.CONNECTION_CLOSED, "cannot answer: the client disconnected, and the call was cancelled")

    async def _call(self, context: Context, name: str, arguments: dict[str, Any]) -> ToolResult:
        session, offered = self._session(context), self._offered[self._bind(context).access]
        try:
            if name not in offered:
                return unknown_tool(name, offered)
            if name in self._own:
                return await self._own[name].call(session, arguments)
            has_token = context.meta is not None and "progress_token" in context.meta
            report = ProgressReport(context.session.report_progress) if has_token else None
            return await session.call_tool(name, arguments, report)
        except KNOWN_ERRORS as error:
            retry = {"retryable": True} if error.retryable else {}
            return ToolResult(ok=False, content=str(error), details={"code": error.code, **retry})
        except MCPError:
            raise
        except Exception:  # noqa: BLE001  # logged here; a model must not see an error of the protocol
            _log.exception("cannot carry out a tool call: an unexpected error")
            return ToolResult(ok=False, content=f"cannot call {name}: an unexpected error was logged; try another way")

    # Resources

    async def _list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        with _refusals():
            return await list_resources(self._session(context), params.cursor if params else None)

    async def _list_templates(
        self, _context: Context, _: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return list_templates()

    async def _read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        with _refusals():
            return await read_resource(self._session(context), str(params.uri))

    # Notifications

    async def _greet(self, context: Context, _: types.NotificationParams) -> None:
        if self._bind(context).session is not None:
            await self._notifier(context)

    async def _subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        with _refusals():
            uri = parse_uri(str(params.uri)).uri
            (await self._notifier(context)).subscribe(uri)
        return types.EmptyResult()

    async def _unsubscribe(self, context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        with _refusals():
            uri = parse_uri(str(params.uri)).uri
            (await self._notifier(context)).unsubscribe(uri)
        return types.EmptyResult()

    async def _listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        whose = await self._whose(context)
        if len(self._listens) >= MAX_LISTENS:
            raise MCPError(types.INTERNAL_ERROR, "cannot listen: too many clients listen already; try again later")
        uris = list(params.notifications.resource_subscriptions or ())
        handler = ListenHandler(_SessionBus(self._feed, whose, uris), max_subscriptions=1)
        self._listens.add(handler)
        try:
            with self._feed.listen(whose, lambda _event: None):  # connects the feed before the acknowledgement
                await self._feed.wait_connected()
                return await handler(context, params)
        finally:
            self._listens.discard(handler)

    async def _notifier(self, context: Context) -> ConnectionNotifier:
        """Return the notifier of this connection; the first call starts it."""
        connection: Connection = context.session._connection  # the SDK has no public name for it yet
        found = connection.state.get(_NOTIFIER)
        if not isinstance(found, ConnectionNotifier):
            found = connection.state[_NOTIFIER] = ConnectionNotifier(connection, self._feed)
            scope = anyio.CancelScope()
            connection.exit_stack.callback(scope.cancel)
            context.lifespan_context.tasks.start_soon(_run_within, scope, found)
        await found.listen(await self._whose(context))
        return found

    # Whose

    async def _discover(self, context: Context, params: types.RequestParams | None) -> types.DiscoverResult:
        """Send a client that names no session to the handshake, which gives it one for its connection."""
        if self._bind(context).session is None:
            raise MCPError(
                types.UNSUPPORTED_PROTOCOL_VERSION,
                _NO_SESSION,
                {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": context.protocol_version},
            )
        return await self._handle_discover(context, params)

    def _session(self, context: Context) -> AgentSession:
        binding = self._bind(context)
        if binding.session is None:
            raise MCPError(types.INVALID_REQUEST, _NO_SESSION)
        return AgentSession(self._client, binding, binding.session, _actor(context))

    async def _whose(self, context: Context) -> Listening:
        session = self._session(context)
        with _refusals():
            return Listening(session.tenant, session.name, await session.user())


class _SessionBus:
    """The changes of one session, as the SDK's streams of changes take them."""

    def __init__(self, feed: ResourceFeed, whose: Listening, uris: list[str]) -> None:
        self._feed = feed
        self._whose = whose
        self._uris = uris

    async def publish(self, event: ServerEvent) -> None:
        raise NotImplementedError("changes come from the daemon")

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        def hear(event: ServerEvent | None) -> None:
            if event is not None:
                listener(event)
                return
            listener(ResourcesListChanged())
            for uri in self._uris:
                listener(ResourceUpdated(uri))

        listening = ExitStack()
        listening.enter_context(self._feed.listen(self._whose, hear))
        return listening.close


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn the daemon's errors into errors of the protocol."""
    try:
        yield
    except KNOWN_ERRORS as error:
        is_callers = not error.retryable and not isinstance(error, LimitReached)
        raise MCPError(types.INVALID_PARAMS if is_callers else types.INTERNAL_ERROR, str(error)) from error


@contextmanager
def _until_disconnect(context: Context) -> Iterator[None]:
    """Cancel the block if the client of this request disconnects, where the transport can tell."""
    calls = context.request.scope.get(CALLS) if context.request is not None else None
    with anyio.CancelScope() as scope:
        if calls is None:
            yield
            return
        calls.add(scope)
        try:
            yield
        finally:
            calls.discard(scope)


async def _run_within(scope: anyio.CancelScope, notifier: ConnectionNotifier) -> None:
    with scope:
        await notifier.run()


async def _forgive_arguments(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Let a tool call whose arguments are not an object reach the tool, which says how to do it right."""
    params = ctx.params
    if ctx.method == "tools/call" and isinstance(params, Mapping):
        arguments = restore(params)
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                arguments = {"arguments": arguments}
        if arguments is not None and not isinstance(arguments, dict):
            arguments = {"arguments": arguments}
        name = params.get("name")
        forgiven = {**params, "name": name if isinstance(name, str) else json.dumps(name)[:100]}
        forgiven.pop("arguments", None)
        ctx = replace(ctx, params=forgiven if arguments is None else {**forgiven, "arguments": arguments})
    return await call_next(ctx)


def _actor(context: Context) -> str:
    """Return the author of a client's writes: its name in the protocol, always marked as one of MCP."""
    client = context.session.client_params
    name = "".join(char for char in client.client_info.name if char.isprintable())[:MAX_ACTOR_CHARS] if client else ""
    return f"mcp:{name}" if name else "mcp"


def _render(result: ToolResult) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=result.content)],
        is_error=not result.ok,
        _meta={"sandboxd/details": result.details} if result.details else None,
    )
