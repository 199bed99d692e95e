# Generated from sandboxd/client/_async/__init__.py by scripts/unasync.py; change that file and run `make client`.
"""The async client; `_sync` is generated from this package by `make client`."""
