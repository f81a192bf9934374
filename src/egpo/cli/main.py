"""The command `egpo`: assembles the verbs into one typer app, and turns errors into one line and an exit code.

Nothing heavy is imported before a verb runs: `egpo --help` loads neither torch nor transformers.
"""

import errno
import os
import sys
from contextlib import suppress
from inspect import getdoc
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from egpo.cli.audit import audit_app
from egpo.cli.board import board
from egpo.cli.compare import compare
from egpo.cli.config import config_app
from egpo.cli.convert import convert_app
from egpo.cli.demo import demo
from egpo.cli.doctor import doctor
from egpo.cli.eval import eval_models
from egpo.cli.eval_bfcl import bfcl
from egpo.cli.merge import merge
from egpo.cli.plan import plan
from egpo.cli.prepare import prepare_app
from egpo.cli.probe import probe
from egpo.cli.push import push
from egpo.cli.recipes import new, recipes
from egpo.cli.report import report
from egpo.cli.results import results
from egpo.cli.run import run
from egpo.cli.serve import serve
from egpo.cli.sft import sft
from egpo.cli.silence import watched_verb
from egpo.cli.train import train
from egpo.cli.words import Verbs, print_first_line
from egpo.errors import ERROR_PREFIX, EgpoError
from egpo.files import system_error
from egpo.version import __version__


class DefaultCommand(TyperGroup):
    """A command group whose first command needs no name: `egpo eval MODEL` is short for `egpo eval models MODEL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = next(iter(self.commands))
        return super().parse_args(ctx, args if args and args[0] in self.commands else [first, *args])


def fill_paragraphs(app: typer.Typer) -> None:
    """Join the lines of each paragraph in the help of all commands.

    Without this, typer keeps the line breaks of the source code after the first paragraph.
    """
    for command in app.registered_commands:
        paragraphs = (command.help or getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            fill_paragraphs(group.typer_instance)


HELP = """Entropy-guided reinforcement learning for language models.

Train with GRPO or EGPO, evaluate models, compare runs and write reports.

For the options of a command: egpo COMMAND --help
"""

app = typer.Typer(
    cls=Verbs,
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(rich_help_panel="Set-up", short_help="Try a small training in minutes.  [cyan]egpo demo --fast[/]")(demo)
app.command(rich_help_panel="Set-up", short_help="Check this machine for egpo.  [cyan]egpo doctor[/]")(doctor)
app.command(
    rich_help_panel="Experiments", short_help="Run recipes from data to report.  [cyan]egpo run countdown_tiny[/]"
)(run)
app.command(rich_help_panel="Experiments", short_help="Compare many methods.  [cyan]egpo board board.yaml --plan[/]")(
    board
)
app.command(rich_help_panel="Recipes", short_help="List the recipes of the package.  [cyan]egpo recipes[/]")(recipes)
app.command(rich_help_panel="Recipes", short_help="Write a recipe from another.  [cyan]egpo new mine --from RECIPE[/]")(
    new
)
app.command(
    rich_help_panel="Training",
    short_help="Probe a model before training.  [cyan]egpo probe --model M --task countdown[/]",
)(probe)
app.command(rich_help_panel="Training", short_help="Estimate memory and time.  [cyan]egpo plan countdown_tiny[/]")(plan)
app.command(rich_help_panel="Training", short_help="Train with GRPO or EGPO.  [cyan]egpo train countdown_tiny[/]")(
    train
)
app.command(rich_help_panel="Training", short_help="Supervised fine-tuning.  [cyan]egpo sft cold_start[/]")(sft)
app.command(
    rich_help_panel="Results", short_help="Write a checkpoint as a model.  [cyan]egpo merge runs/first --out M[/]"
)(merge)
app.command(rich_help_panel="Results", short_help="Upload a model.  [cyan]egpo push runs/first me/first[/]")(push)
app.command(rich_help_panel="Results", short_help="Serve a model.  [cyan]egpo serve runs/first[/]")(serve)
app.command(rich_help_panel="Results", short_help="Write an HTML report.  [cyan]egpo report runs/a runs/b[/]")(report)
app.command(rich_help_panel="Results", short_help="Compare runs.  [cyan]egpo compare runs/a runs/b[/]")(compare)
app.command(rich_help_panel="Results", short_help="List all runs.  [cyan]egpo results runs[/]")(results)
eval_app = typer.Typer(cls=DefaultCommand)
eval_app.command("models")(eval_models)
eval_app.command("bfcl")(bfcl)

# Panel, app, name, summary, example.
GROUPS = [
    ("Results", eval_app, "eval", "Evaluate models.", "egpo eval MODEL --task countdown"),
    ("Recipes", config_app, "config", "Show, check and import recipes.", "egpo config check mine.yaml"),
    ("Data", prepare_app, "prepare", "Write a task's data.", "egpo prepare countdown --out data/countdown"),
    ("Data", convert_app, "convert", "Convert conversations.", "egpo convert messages chats.jsonl --out data/chats"),
    ("Rewards", audit_app, "audit", "Check rewards and sandbox.", "egpo audit rewards rollouts.jsonl"),
]
for _panel, _app, _name, _meaning, _example in GROUPS:
    app.add_typer(_app, name=_name, rich_help_panel=_panel, short_help=f"{_meaning}  [cyan]{_example}[/]")
fill_paragraphs(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"egpo {__version__}")
        raise typer.Exit


@app.callback()
def egpo(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line. A mistake of the user ends with a message and exit code 2, other failures with code 1."""
    # By default torch's waiting threads spin for milliseconds: a step then takes ten times as long if another process
    # is busy, and is slower even on an idle machine. With no spinning at all it is slower, too.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    try:
        print_first_line(sys.argv[1:])
        try:
            with watched_verb(sys.argv[1:]):
                app()
        finally:
            sys.stdout.flush()  # flushed here, because a failure at the interpreter's exit could not be reported
    except EgpoError as error:
        _say(*map(str, error.faults))
        raise SystemExit(error.exit_code) from None
    except Exception as error:  # boundary: only failures of the machine are handled, others are raised again
        if (what := _failure_of_the_machine(error)) is None:
            raise
        _say(what)
        raise SystemExit(1) from None


_OUTPUT_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT)
_DISK_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE),
    errno.EFBIG,
)
_NO_MEMORY = ("failed to map segment", "annot allocate memory", "can't allocate memory")
"""Parts of the messages with which the dynamic linker, libc and torch report that memory is exhausted."""


def _failure_of_the_machine(error: Exception) -> str | None:
    """Return a message of one line if the error is a failure of the machine; None for other errors.

    These failures are a standard output or a file that cannot be written, too little memory, and too many threads.
    """
    said = (str(error) or type(error).__name__).splitlines()[0][:200]
    if isinstance(error, OSError) and error.errno in _OUTPUT_ERRORS and error.filename is None:
        with suppress(OSError, ValueError):  # so that flushing the buffer at exit does not fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return f"standard output cannot be written ({error.strerror}); free some space, or write elsewhere"
    if (refused := system_error(error)) is not None and refused.errno in _DISK_ERRORS:
        fix = "free some space, fix the permissions or close other programs, then run the command again"
        which = "a file" if refused.filename is None else os.fsdecode(refused.filename)
        return f"{which}: the system refused it ({refused.strerror if refused is error else said}); {fix}"
    if "can't start new thread" in str(error):
        return "no more threads can be started; end other processes, raise `ulimit -u`, or lower OMP_NUM_THREADS"
    if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
        return f"not enough memory ({said}); raise the limit (`ulimit -v`), or use a machine with more memory"
    return None


def _say(*lines: str) -> None:
    """Print lines to stderr, or nothing if stderr is closed."""
    with suppress(OSError):
        for line in lines:
            print(f"{ERROR_PREFIX}{line}", file=sys.stderr)
