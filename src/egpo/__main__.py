"""The entry point of `python -m egpo`, which is the same as the command `egpo`."""

from egpo.cli.main import main

main()
