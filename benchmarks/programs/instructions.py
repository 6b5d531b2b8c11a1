"""Count the instructions of this process's main thread, where Linux lets it.

On a machine with other work, CPU time varies by half with what else runs on the core. Instructions vary by a percent.
"""

import ctypes
import os
import platform

_SYSCALL = {"x86_64": 298, "aarch64": 241}
"""The numbers of perf_event_open."""
_HARDWARE, _INSTRUCTIONS = 0, 1
_EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 5, 1 << 6


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("others", ctypes.c_uint8 * 80),
    )


class Counter:
    """Instructions since it was made, without the kernel's."""

    def __init__(self) -> None:
        self._file = _opened()

    def read(self) -> int | None:
        """Return how many there were; ``None`` if they cannot be counted here."""
        return None if self._file is None else int.from_bytes(os.read(self._file, 8), "little")


def _opened() -> int | None:
    number = _SYSCALL.get(platform.machine()) if platform.system() == "Linux" else None
    if number is None:
        return None
    attributes = _Attributes(
        type=_HARDWARE, config=_INSTRUCTIONS, flags=_EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR
    )
    attributes.size = ctypes.sizeof(attributes)
    file: int = ctypes.CDLL(None).syscall(number, ctypes.byref(attributes), 0, -1, -1, 0)
    return None if file < 0 else file
