"""Runs the command line: `python -m egpo` equals `egpo`."""

from egpo.cli.main import main

main()
