"""Run ``leash.py SIGNAL PARENT USER PROGRAM ARGUMENT…`` to start a program that ends with its parent.

When the process PARENT dies in any way, the kernel sends SIGNAL to the program. This works on Linux only; elsewhere
the program stays. USER is the uid to run as, or empty. This is a separate program, because code between fork and exec
is not safe in a process with threads.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(number: str, parent: str, user: str, *command: str) -> None:
    """Become the program. This never returns."""
    if user:
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))  # first, because a change of user clears the signal
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
        if os.getppid() != int(parent):  # the parent died before the call above
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(*sys.argv[1:])
