"""A model as `transformers serve` must find it: under its name, and told to sample.

The server knows a model by the word that it was started with, and samples as the model's generation config says: where
that does not say `do_sample`, temperature 1 is greedy all the same, and where it says top_k 20, 20 it is.
"""

import json
from pathlib import Path

from egpo.errors import InputError
from egpo.serving.commands import Serving

_GENERATION = "generation_config.json"
_PLAIN = {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}


def offer(folder: Path, serving: Serving) -> dict[str, str]:
    """Link the model's files in `folder`/name, beside a generation config that cuts nothing.

    Returns environment variables for the server: an empty cache of the hub in `folder`. It lists that cache at
    `/v1/models`, and answers 500 for ever where the user's cache folder does not exist.
    """
    place = folder / serving.name
    if not place.is_relative_to(folder) or ".." in place.parts:
        raise InputError(f"`{serving.name}`", where="--name", fix="a plain name, as in my-model")
    model = Path(serving.model)
    if not model.is_dir():
        fix = "download it into a folder and give that, or install vLLM"
        raise InputError("`transformers serve` would sample it as the hub says", where=f"model {model}", fix=fix)
    place.mkdir(parents=True)
    for path in model.iterdir():
        if path.name != _GENERATION:
            (place / path.name).symlink_to(path.absolute())
    (place / _GENERATION).write_text(json.dumps(_generation(model) | _PLAIN), encoding="utf-8")
    cache = folder / ".hub"
    cache.mkdir()
    return {"HF_HUB_CACHE": str(cache)}


def _generation(model: Path) -> dict[str, object]:
    """Its end tokens, above all."""
    path = model / _GENERATION
    try:
        value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise InputError(f"cannot be read ({error})", where=str(path), fix="mend it") from error
    if not isinstance(value, dict):
        raise InputError("holds no object", where=str(path), fix="mend it")
    return value
