import json

import pytest

from egpo.local.sft.examples import read_examples


@pytest.fixture
def write_rows(tmp_path):
    """`write_rows(rows)` is the path of a JSON lines file."""

    def write(rows, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path

    return write


@pytest.fixture
def policy(load):
    return load("qwen3")


@pytest.fixture
def read(policy, write_rows):
    """`read(rows, template)`: the rows as examples under a chat template."""

    def reading(rows, template=None, **options):
        if template is not None:
            policy.tokenizer.chat_template = template
        return read_examples(write_rows(rows), policy, **options)

    return reading
