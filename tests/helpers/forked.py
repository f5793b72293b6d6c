"""Runs the same work in several processes, as forks of one that has imported what they need."""

import os
import socket
import sys

WORLDS = (1, 2, 4)


def fork(work, world, folder):
    """Run `work(rank, world, port, folder)` in so many processes; returns whether all came to their end.

    One is this process itself, so that what it imports is there in all others.
    """
    folder.mkdir()
    if world == 1:
        work(0, 1, 0, folder)
        return True
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(world):
        process = os.fork()
        if process == 0:
            code = 1
            try:
                work(rank, world, port, folder)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        started.append(process)
    return all(os.waitpid(process, 0)[1] == 0 for process in started)
