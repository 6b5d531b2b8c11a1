"""``leash.py SIGNAL PARENT USER PROGRAM ARGUMENT…`` becomes the program, on a leash.

The kernel sends it SIGNAL when its parent dies, however that dies (Linux only; elsewhere it is left over). USER is
the uid to become first, or empty. A program of its own, as code between fork and exec is not safe beside threads.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(number: str, parent: str, user: str, *command: str) -> None:
    """Never returns."""
    if user:
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))  # before the leash: a change of user takes it off
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
        if os.getppid() != int(parent):  # it died before the kernel knew
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(*sys.argv[1:])
