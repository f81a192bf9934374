"""Child processes: how they are started, ended with their parent, killed, and found.

workers.py   a Python worker process that answers messages over a socket, both sides of it; `IdleWorkers` keeps
             workers between uses (the reward and the math worker pools)
guarded.py   a long-running command whose output is read line by line (a model server); guard.py, its parent process,
             ends it when this process is gone
commands.py  a short command whose output is wanted, with a time limit (a compiler, pip, another interpreter)
launches.py  a command in a session of its own that starts many more processes (verl): `LaunchedProcesses` finds all of
             them by mark, session and descent, and ends them
table.py     the process table in /proc: identity, session, open files, shared memory; signals to processes by identity

Nothing here depends on what a process computes. `egpo.errors.how_it_ended` describes an exit status.
"""
