"""`egpo push`: write a model card, and upload a trained model to a hub."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from egpo.pushes.hub import Pushed
    from egpo.pushes.pushed_model import PushedModel

SOURCE_HELP = "A run folder, a checkpoint in it, or a model that `egpo merge` wrote of one."
REPO_HELP = "Repository on the hub, as owner/name. It is created if it does not exist."
STEP_HELP = "Step of the checkpoint to upload. Default: the latest."
DRY_HELP = "Write the card only; nothing is uploaded, and no token is needed."
PUBLIC_HELP = "Make a new repository public, or allow uploading to a public one. Default: private."
MESSAGE_HELP = "Message of the commit. Default: names the run and the step."


def push(
    source: Annotated[Path, typer.Argument(metavar="RUN|MODEL", help=SOURCE_HELP, show_default=False)],
    repo: Annotated[str | None, typer.Argument(metavar="[REPO]", help=REPO_HELP, show_default=False)] = None,
    step: Annotated[int | None, typer.Option(min=0, help=STEP_HELP, show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_HELP)] = False,
    public: Annotated[bool, typer.Option("--public", help=PUBLIC_HELP)] = False,
    message: Annotated[str | None, typer.Option(help=MESSAGE_HELP, show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write a model card from the run's provenance and evaluations, and upload the model with it.

    The card has the task, the method, the digests of the data, the evaluations with their intervals, versions, commit
    and command, as far as the run recorded them. It is kept in the run folder as cards/step_N.md. The hub is that of
    HF_ENDPOINT, by default huggingface.co; the token is that of `hf auth login` or HF_TOKEN.

    Example: [cyan]egpo push runs/first my-name/first --dry-run[/]
    """
    from egpo.errors import InputError

    if repo is None and not dry_run:
        fix = "give it as owner/name, or use --dry-run to write the card only"
        raise InputError("no repository", where="REPO", fix=fix)
    from egpo.pushes.pushed_model import find_pushed_model

    if repo is not None:
        from egpo.pushes.hub import require_repo

        require_repo(repo)
    model = find_pushed_model(source, step)
    name = model.run.name if repo is None else repo.partition("/")[2]
    card = _write_card(model, name)
    done = None if dry_run or repo is None else _upload(model, card, repo, public, message, quiet=as_json)
    _print_result(model, done, as_json)


def _write_card(model: "PushedModel", name: str) -> str:
    from egpo.errors import EgpoError
    from egpo.files import write_atomically
    from egpo.pushes.model_card import model_card

    card, path = model_card(model, name), model.run.folder.card_of(model.step)
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, card)
    except OSError as error:
        fix = "free some space, or fix the permissions"
        raise EgpoError(
            f"the model card cannot be written ({error.strerror or error})", where=str(path), fix=fix
        ) from error
    return card


def _upload(model: "PushedModel", card: str, repo: str, public: bool, message: str | None, *, quiet: bool) -> "Pushed":
    import sys

    from egpo.cli.silence import now_doing
    from egpo.pushes.hub import push as pushed_by
    from egpo.pushes.hub import require_token
    from egpo.pushes.pushed_model import verify

    token = require_token()  # before gigabytes are read
    amount = f"{len(model.files)} files, {model.num_bytes / 1e6:,.1f} MB"
    typer.echo(f"uploading {amount}, to {repo}", err=True)
    now_doing(f"checking {amount}")
    if quiet or not sys.stderr.isatty():
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
    verify(model)
    now_doing(f"uploading {amount}")
    said = message or f"Upload {model.run.name}, step {model.step}"
    return pushed_by(model, card, repo, token=token, public=public, message=said)


def _print_result(model: "PushedModel", done: "Pushed | None", as_json: bool) -> None:
    card = model.run.folder.card_of(model.step)
    if as_json:
        import json
        from dataclasses import asdict

        shown = {"card": str(card), "step": model.step, "model": str(model.folder), "left_out": model.left_out}
        typer.echo(json.dumps(shown | {"upload": None if done is None else asdict(done)}, indent=2))
        return
    typer.echo(f"card of step {model.step}: {card}")
    if model.left_out:
        typer.echo(f"not part of a model, not uploaded: {', '.join(model.left_out)}")
    if done is None:
        typer.echo("nothing was uploaded (--dry-run)")
        return
    kind = "private" if done.is_private else "public"
    typer.echo(f"{done.url} ({kind}): {done.num_files} files, {done.num_bytes / 1e6:,.1f} MB, commit {done.commit}")
    if done.removed:
        typer.echo(f"removed weights of an earlier upload: {', '.join(done.removed)}")
