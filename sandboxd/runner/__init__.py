"""The runner: the daemon's one process inside a container, and the client that talks to it."""
