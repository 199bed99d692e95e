"""The Makefile's targets: environment, engine, run, and the scripts that write generated files.

Only the standard library is imported, except by `run` and `settings_reference`, which run inside the environment.
"""
