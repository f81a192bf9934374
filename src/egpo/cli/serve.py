"""`egpo serve`: start an OpenAI-compatible server for a model."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from egpo.serving.served import Served

MODEL_HELP = "Model folder, run folder, checkpoint folder, or model name on the hub."
PARSER_HELP = "vLLM's name of the parser. auto: chosen by the chat template. none: the text is returned unparsed."
PYTHON_HELP = "Python of the environment that has vLLM or transformers. Default: this one, or .env-verl in this folder."


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)],
    host: Annotated[str, typer.Option(help="Address to listen on. 0.0.0.0: all interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on. 0: any free port.")] = 8000,
    name: Annotated[
        str | None, typer.Option(help="Name of the model on the server. Default: the name of its folder or run.")
    ] = None,
    engine: Annotated[
        Literal["auto", "vllm", "transformers"],
        typer.Option(help="Server to start. auto: vLLM if it is installed, else transformers."),
    ] = "auto",
    python: Annotated[str | None, typer.Option(help=PYTHON_HELP, show_default=False)] = None,
    thinking: Annotated[
        bool | None, typer.Option(help="Turn thinking on or off in the chat template. Default: the template's own.")
    ] = None,
    tool_parser: Annotated[str, typer.Option(metavar="NAME", help=PARSER_HELP)] = "auto",
    reasoning_parser: Annotated[str, typer.Option(metavar="NAME", help=PARSER_HELP)] = "auto",
    dtype: Annotated[str, typer.Option(help="Data type of the weights. auto: the model's; float32 on a CPU.")] = "auto",
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest prompt and response together, in tokens. Default: the model's.")
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="Checkpoint of a run: latest, best, or a step number.")] = "latest",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until the server must be ready.")] = 900,
) -> None:
    """Serve a model until Ctrl-C: with vLLM if it is installed, else with `transformers serve`.

    Tool calls are parsed in the format of the model's chat template. Thinking is removed from the text if the prompt
    opens it. Defaults of requests: temperature 1, no top-p and no top-k.

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
        settings,
        engine=engine,
        python=python,
        timeout_s=timeout,
        say=_forward,
        watch=_reported_every_ten_seconds(settings.name),
    )
    with start as server:
        _serve_until_interrupted(server)


def _forward(line: str) -> None:
    typer.echo(f"server | {line}", err=True)


def _serve_until_interrupted(server: "Served") -> None:
    import time

    from egpo.errors import EgpoError

    try:
        typer.echo(f"{server.model_name} is served at {server.url} ({server.engine.kind})")
        typer.echo(f"egpo eval {server.model_name} --url {server.url} --task countdown")
        while not server.process.ended:
            time.sleep(0.5)
    except KeyboardInterrupt:
        typer.echo("stopping the server", err=True)
        return
    log = "\n".join(server.process.last_lines[-5:])
    raise EgpoError(f"the server stopped unexpectedly:\n{log}", where=server.url)


def _reported_every_ten_seconds(name: str) -> Callable[[float], None]:
    """Return a function that prints a line every ten seconds: a server's log may be silent for minutes."""
    said = 0.0

    def watch(seconds: float) -> None:
        nonlocal said
        if seconds - said >= 10:
            said = seconds
            typer.echo(f"{name} is starting: {seconds:.0f} s", err=True)

    return watch
