"""The code that runs inside the sandbox: the supervisor, and the process of the program.

supervisor.py    reads the job, starts the program, watches it and reports; containment.py, the limits of each process
script.py        runs a whole program; execute.py, the one place where source is executed
check_runner.py  runs test code in the supervisor; remote.py, its stand-ins for the program's objects; equality.py, `==`
server.py        answers those stand-ins, in the process of the program
deadline.py      the time limit of a test, which the host extends
wire.py          frames between the processes; values.py, plain values as bytes

These modules are sent into the sandbox as code (`payload.py` lists them) and run in an interpreter without `site` and
without egpo. They import C modules only: `os`, `signal` or `typing` would each add a millisecond or more per program.
"""
