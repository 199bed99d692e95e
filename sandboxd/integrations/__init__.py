"""Adapters for agent frameworks, one module per framework, each installed by an extra of the same name.

They use only the client, so they work with a daemon on this host or on another. Importing this package imports no
framework.
"""
