"""Serve a model through an OpenAI-compatible server while a `with` block runs. In: a model. Out: the server's URL.

commands.py  which server is installed (vLLM or `transformers serve`), what the model's chat template needs, and the
             command line made of both
engine_options.py  options of vLLM that the user passes through, checked by vLLM's own parser
served.py    `with served("models/first") as server:` starts the server, waits until it answers, and ends it

The process itself is a `GuardedProcess` (`egpo.processes.guarded`).
"""
