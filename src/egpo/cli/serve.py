"""`egpo serve`: a model behind an OpenAI-compatible server."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from egpo.serving.served import Served

MODEL_HELP = "A model folder, a run, a checkpoint in it, or a name of the hub."
PARSER_HELP = "vLLM's name of it; auto: by the chat template; none: the text stays as it is."
PYTHON_HELP = "The python of the environment that has the server. Default: this one, or .env-verl here."


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)],
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0: on every interface.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    name: Annotated[str | None, typer.Option(help="Of the model. Default: its folder's, or its run's.")] = None,
    engine: Annotated[Literal["auto", "vllm", "transformers"], typer.Option(help="auto: vLLM where it is.")] = "auto",
    python: Annotated[str | None, typer.Option(help=PYTHON_HELP, show_default=False)] = None,
    thinking: Annotated[bool | None, typer.Option(help="Ask the template for thinking, or against it.")] = None,
    tool_parser: Annotated[str, typer.Option(metavar="NAME", help=PARSER_HELP)] = "auto",
    reasoning_parser: Annotated[str, typer.Option(metavar="NAME", help=PARSER_HELP)] = "auto",
    dtype: Annotated[str, typer.Option(help="auto: the model's; float32 on a CPU.")] = "auto",
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest prompt with response.")] = None,
    checkpoint: Annotated[str, typer.Option(help="Of a run: latest, best, or a step.")] = "latest",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until it must answer.")] = 900,
) -> None:
    """Serve a model until Ctrl-C: vLLM where it is installed, `transformers serve` otherwise.

    Tool calls are parsed as the model's chat template writes them, and thinking is taken out of the text where the
    prompt opens it. What a request leaves out is sampled plainly: temperature 1, nothing cut.

    Example: [cyan]egpo serve runs/first --port 8000[/]
    """
    from egpo.evals.targets import find_model
    from egpo.serving.commands import Serving
    from egpo.serving.served import served

    place = find_model(model, checkpoint)
    settings = Serving(
        model=place.model,
        name=name or place.label.rpartition("/")[2].replace(" ", "-"),
        host=host,
        port=port,
        thinking=thinking,
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        dtype=dtype,
        max_tokens=max_tokens,
    )
    start = served(
        settings, engine=engine, python=python, timeout_s=timeout, say=_forward, watch=_told_now_and_then(settings.name)
    )
    with start as server:
        _serve_until_told(server)


def _forward(line: str) -> None:
    typer.echo(f"server | {line}", err=True)


def _serve_until_told(server: "Served") -> None:
    import time

    from egpo.errors import EgpoError

    try:
        typer.echo(f"{server.model_name} answers at {server.url} ({server.engine.kind})")
        typer.echo(f"egpo eval {server.model_name} --url {server.url} --task countdown")
        while not server.process.ended:
            time.sleep(0.5)
    except KeyboardInterrupt:
        typer.echo("ending", err=True)
        return
    log = "\n".join(server.process.last_lines[-5:])
    raise EgpoError(f"the server ended by itself:\n{log}", where=server.url)


def _told_now_and_then(name: str) -> Callable[[float], None]:
    """A line every ten seconds: a server's log may be silent for minutes."""
    said = 0.0

    def watch(seconds: float) -> None:
        nonlocal said
        if seconds - said >= 10:
            said = seconds
            typer.echo(f"{name} starts: {seconds:.0f} s", err=True)

    return watch
