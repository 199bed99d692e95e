"""Thin adapters: each gives one framework a sandbox, through the client and its errors alone."""
