"""What an agent remembers, and where it is kept.

A library: it knows documents, sessions and stores, and nothing of containers.
"""
