"""The entry point of the command `egpo`, and of `python -m egpo`."""

import sys

from egpo.cli.stops import prompt_exit, stopped_by_signals


def main() -> None:
    with prompt_exit(), stopped_by_signals(sys.argv[1:]):
        from egpo.cli.main import main as run_verb

        run_verb()


if __name__ == "__main__":
    main()
