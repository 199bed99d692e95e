"""The wire: HTTP and JSON over a unix socket, or TCP with a token. `app.create_app` builds it, one file per resource.

Routes parse, call the manager and render. They hold no state and decide nothing about sandboxes.
"""
