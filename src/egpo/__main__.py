"""`python -m egpo` is `egpo`."""

from egpo.cli.main import main

main()
