"""What the Makefile's verbs do: environment, engine, image, run.

Only the standard library is imported here, except by `image` and `run`, which run inside the environment.
"""
