"""C kernels for CPUs, which do in one pass over memory what torch does in several. torch itself is the fallback.

library.py   compiles `sources/` with the machine's C compiler at first use, loads the library, and declares its calls
sources/     the kernels: one `.c` file per operation

To add a kernel: write its C function in `sources/`, and add its argument types to `_ARGUMENTS` in library.py.
`EGPO_NATIVE=0` disables all kernels.
"""
