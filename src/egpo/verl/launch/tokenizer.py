"""The model's tokenizer, for what is known only in tokens."""

from typing import Any

from egpo.errors import InputError


def load_tokenizer(place: str) -> Any:
    """Of a model folder, or of a name on the hub."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError) as error:
        fix = "give a folder with a model and its tokenizer, or a name on the hub that can be reached"
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"no tokenizer there ({said})", where=f"model {place}", fix=fix) from error
