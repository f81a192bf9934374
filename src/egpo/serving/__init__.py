"""Serve a model through an OpenAI-compatible server while a `with` block runs. In: a model. Out: the server's URL.

commands.py  which server is installed (vLLM or `transformers serve`), what the model's chat template needs, and the
             command line made of both
served.py    `with served("models/first") as server:` starts the server, waits until it answers, and ends it

The process itself is a `GuardedProcess` (`egpo.processes.guarded`).
"""
