"""The async client; `_sync` is generated from this package by `make client`."""
