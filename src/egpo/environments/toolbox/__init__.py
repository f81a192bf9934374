"""The environment `toolbox`: generated worlds of a few stateful tools, small enough for a small model.

    world_tools.py   the tools of six domains: their parameters, and what each does to the state
    requests.py      what a user may ask for: a text, the calls that answer it, and how it can be made harder
    worlds.py        draws a world (state, requests, tools) from a seed; its gold trajectory and the expected state
    checking.py      `ToolboxEnvironment`: runs the tools, speaks for the user, and judges the end

A world is JSON, stored with its problem. The task of the same name (`egpo.tasks.toolbox`) writes the prompts.
"""
