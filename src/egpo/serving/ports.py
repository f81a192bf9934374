"""A port that nobody listens on, found out before a server takes a minute to start."""

import errno
import socket

from egpo.errors import InputError


def free_port(host: str, port: int) -> int:
    """`port` itself, or any for 0. An InputError where it is taken, or is none for us."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # A port that was closed a moment ago may be had again, as servers do it; one that is listened on may not.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except socket.gaierror as error:
        raise InputError(f"no such host ({error.strerror})", where=f"--host {host}", fix="as in 127.0.0.1") from error
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        what = "the port is in use" if taken else f"cannot be listened on ({getattr(error, 'strerror', None) or error})"
        fix = "choose another, or 0 for any that is free"
        raise InputError(what, where=f"{host}:{port}", fix=fix) from error
