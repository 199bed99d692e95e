"""`python -m sandboxd` is the command `sandboxd`."""

from sandboxd.cli import main

main()
