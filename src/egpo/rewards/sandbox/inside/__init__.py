"""What runs inside the sandbox: the supervisor, and the program's side of the wire.

These modules travel into the sandbox as code and run there in an interpreter without `site` and without egpo. So
they import C modules only: `os`, `signal` or `typing` would each add a millisecond or more to every program.
"""
