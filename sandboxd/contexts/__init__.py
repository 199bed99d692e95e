"""Contexts: code that runs in a sandbox and keeps its state between runs, in a Jupyter kernel of the image."""
