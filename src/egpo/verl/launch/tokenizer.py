"""The model's tokenizer, for what is known only in tokens."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from egpo.errors import InputError


def load_tokenizer(place: str) -> Any:
    """Of a model folder, or of a name on the hub."""
    from transformers import AutoTokenizer

    _refuse_code(Path(place))
    try:
        return AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except (OSError, ValueError) as error:
        fix = "give a folder with a model and its tokenizer, or a name on the hub that can be reached"
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"no tokenizer there ({said})", where=f"model {place}", fix=fix) from error


def _refuse_code(folder: Path) -> None:
    """verl's reward workers load the tokenizer with trust_remote_code=True, whatever verl's settings say: a folder that
    names code of its own (`auto_map`) would have it run there, even where transformers has the class, too."""
    for name in ("config.json", "tokenizer_config.json"):
        held: Any = None
        with suppress(OSError, ValueError):
            held = json.loads((folder / name).read_text(encoding="utf-8"))
        if isinstance(held, dict) and held.get("auto_map"):
            fix = f"take `auto_map` out of {name}, if transformers has the model's classes; else use another model"
            raise InputError("names code of its own, which verl would run", where=str(folder / name), fix=fix)
