"""Asks the machine's init for an orderly reboot. Nobody here can prove it: the next boot's id does."""

import os
import signal
from pathlib import Path

SYSTEMD = "systemd"
REBOOT = signal.SIGRTMIN + 5
"""To systemd as init: start `reboot.target`, so services stop in order. Source: systemd(1), "Signals"."""


class RebootRefusedError(Exception):
    """Nothing was asked. The message says why and what to do."""


class Init:
    """The machine's first process, which the agent sees since its pod has the host's PID namespace."""

    def __init__(self, proc: Path, pid: int = 1) -> None:
        self._name_file = proc / str(pid) / "comm"
        self._pid = pid

    def ask_for_reboot(self) -> None:
        """Send the signal, once. Raises `RebootRefusedError` where nothing was sent.

        To another init than systemd the signal may mean anything; and without the host's PID namespace the
        first process would be the agent itself.
        """
        other_way = "choose another way to reboot in the policy (`reboot: ec2` or `reboot: command`)"
        try:
            name = self._name_file.read_text(errors="replace").strip()
        except OSError as error:
            raise RebootRefusedError(
                f"who init is cannot be read ({self._name_file}: {error.strerror or error}), so nothing was "
                f"asked; {other_way}"
            ) from error
        if name != SYSTEMD:
            raise RebootRefusedError(
                f"process {self._pid} is {name}, not {SYSTEMD}, so nothing was asked; {other_way}"
            )
        try:
            os.kill(self._pid, REBOOT)
        except OSError as error:
            raise RebootRefusedError(
                f"{SYSTEMD} (pid {self._pid}) could not be asked: {error.strerror or error}; {other_way}"
            ) from error
