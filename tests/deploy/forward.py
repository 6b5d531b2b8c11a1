"""Forward a port of this machine to a service of a cluster."""

import socket
import subprocess
import time
from contextlib import suppress
from typing import Self

from tests.processes import free_port


class Forward:
    """A ``kubectl port-forward`` to a service. It leads to one pod, and ends with it."""

    def __init__(self, namespace: str, service: str, port: int) -> None:
        self._port = free_port()
        self._process = subprocess.Popen(
            ["kubectl", "-n", namespace, "port-forward", f"service/{service}", f"{self._port}:{port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @classmethod
    def to(cls, namespace: str, service: str, port: int, within: float = 90) -> Self:
        """Open a forward. Try again if kubectl picks a pod that ends.

        Raises:
            AssertionError: none could be opened within ``within`` seconds.
        """
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            forward = cls(namespace, service, port)
            if forward._opens(deadline):
                return forward
            forward.close()
            time.sleep(0.5)
        raise AssertionError(f"no pod of service {service} could be reached within {within} s")

    @property
    def url(self) -> str:
        """The URL of its end on this machine."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def alive(self) -> bool:
        """Whether it still forwards."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(timeout=10)

    def _opens(self, deadline: float) -> bool:
        """Return whether the forward opens. kubectl listens once it has reached the pod, and ends if it cannot."""
        while self.alive and time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return True
            time.sleep(0.1)
        return False
