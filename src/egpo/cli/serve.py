"""`egpo serve`: serve a model with an OpenAI-compatible server."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from egpo.serving.served import Served

MODEL_HELP = "Model folder, run folder, checkpoint folder, or model name on the hub."
TOOL_PARSER_HELP = (
    "vLLM's parser that extracts tool calls from the text, by its name in vLLM. auto: the one that fits the chat "
    "template. none: tool calls stay in the text."
)
REASONING_PARSER_HELP = (
    "vLLM's parser that separates thinking from the answer, by its name in vLLM. auto: the one that fits the chat "
    "template. none: thinking stays in the text."
)
PYTHON_HELP = (
    "Python interpreter of the environment with vLLM or transformers. Default: the one that runs egpo, or that of "
    "`.env-verl` in the current folder."
)
ENGINE_OPTION_HELP = (
    "Option of vLLM, by vLLM's own name; may be given several times. For example tensor_parallel_size=2, "
    "data_parallel_size=4, gpu_memory_utilization=0.8, max_num_seqs=512, or enforce_eager."
)


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
    tool_parser: Annotated[str, typer.Option(metavar="NAME", help=TOOL_PARSER_HELP)] = "auto",
    reasoning_parser: Annotated[str, typer.Option(metavar="NAME", help=REASONING_PARSER_HELP)] = "auto",
    dtype: Annotated[
        str, typer.Option(help="Data type of the weights. auto: the type in the model's config; on a CPU float32.")
    ] = "auto",
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Context length: prompt and response together, in tokens. Default: the model's."),
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="Checkpoint of a run: latest, best, or a step number.")] = "latest",
    engine_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help=ENGINE_OPTION_HELP, show_default=False)
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds in which the server must become ready; else it is stopped: an error.")
    ] = 900,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the options, print the server's command, and start nothing.")
    ] = False,
) -> None:
    """Serve a model with an OpenAI-compatible server until Ctrl-C is pressed.

    The server is vLLM if it is installed, otherwise `transformers serve`. vLLM returns tool calls, and thinking if the
    chat template starts it, in separate fields of the answer. Requests that set no sampling options are sampled at
    temperature 1, without top-p and top-k.

    Example: [cyan]egpo serve runs/first --engine-option tensor_parallel_size=2[/]
    """
    from egpo.evals.targets import find_model
    from egpo.serving.commands import Serving
    from egpo.serving.engine_options import parse_options
    from egpo.serving.served import dry_run as shown_command
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
        options=parse_options(engine_option or ()),
    )
    if dry_run:
        typer.echo(shown_command(settings, engine=engine, python=python))
        return
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

    from egpo.cli.silence import ready
    from egpo.errors import EgpoError

    try:
        typer.echo(f"{server.model_name} is served at {server.url} ({server.engine.kind})")
        typer.echo(f"to evaluate it: egpo eval {server.model_name} --url {server.url} --task countdown")
        ready()
        while not server.process.ended:
            time.sleep(0.5)
    except KeyboardInterrupt:
        typer.echo("stopping the server", err=True)
        return
    log = "\n".join(server.process.last_lines[-5:])
    raise EgpoError(f"the server stopped unexpectedly:\n{log}", where=server.url)


def _reported_every_ten_seconds(name: str) -> Callable[[float], None]:
    """Return a function that, called with the seconds since the start, prints them every ten seconds.

    Without it nothing would be printed for minutes, because the log of a starting server may be silent.
    """
    said = 0.0

    def watch(seconds: float) -> None:
        nonlocal said
        if seconds - said >= 10:
            said = seconds
            typer.echo(f"{name} is starting: {seconds:.0f} s", err=True)

    return watch
