"""The MCP server: a session's tools and memory for any client of the Model Context Protocol.

`stdio` serves one client over a pipe, `door` many over HTTP inside the daemon. Both use one implementation, which
calls the daemon's API through `client.AsyncClient`; only its transport differs. Only this package imports the MCP SDK,
and nothing imports this package before the first MCP client arrives.
"""
