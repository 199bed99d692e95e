"""The HTTP API: JSON over a unix socket, or over TCP with a token. `app.create_app` builds it, one file per resource.

Routes parse, call the manager and render. They keep no state and make no decisions about sandboxes.
"""
