"""The runner: the one process of ours inside a container, and the way to talk to it."""
