"""Tool calls in text: one reader for the answers of models and for the calls in datasets.

calls.py        a call; strict JSON values with bounds on depth and numbers; when two values are the same
python_list.py  `[f(a=1), g.h(b=[1, 2])]`, as BFCL's prompt asks for it
answers.py      `<tool_call>{...}</tool_call>` blocks (Hermes, Qwen), and an answer in whichever syntax it uses

Text that cannot be read raises `CallsError`, whose `reason` is one of the reasons of the tool-call reward. By default
the reader is strict, as for a model's answer. With `dataset=True` it is lenient, as for the calls of a conversation
that is converted (`egpo.data.calls`): OpenAI's form of a call, missing arguments, JSON's constants in a Python list.
"""
