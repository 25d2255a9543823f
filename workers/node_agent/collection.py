"""What a node has to say before a repair destroys it, beside the measurement: kernel log and DCGM."""

import asyncio
import shlex
import shutil
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpu_runbooks.workers.node_agent.kernel_log import read_kernel_log
from gpu_runbooks.workers.node_agent.plain_text import Part, plain
from gpu_runbooks.workers.node_agent.tool import Tool

DCGM_LIMIT = 20.0
"""Seconds for DCGM. It only reads what its host engine has sampled already."""

DCGM_LONGEST = 16 * 1024
"""Bytes of its output. The CRD has a limit above it."""

LONGEST_NOTE = 500
"""Limit of the CRD."""

LOG_LIMIT = 15.0
"""Seconds for the kernel log. Only a path that is no `/dev/kmsg` can need so long."""


@dataclass(frozen=True)
class Collected:
    kernel_log: Part
    dcgm: Part | None
    """None where DCGM's command is not on the node, which is nothing that is missing."""


class Collector:
    """Collects on this node. No part fails another, and none raises."""

    def __init__(self, kernel_log: Path, dcgm_command: str) -> None:
        self._kernel_log = kernel_log
        self._command = shlex.split(dcgm_command)
        # A byte more than is kept shows that there was more.
        self._dcgm = Tool(self._command, longest_output=DCGM_LONGEST + 1)

    async def collect(self) -> Collected:
        kernel_log, dcgm = await asyncio.gather(self._read_kernel_log(), self._ask_dcgm())
        return Collected(kernel_log, dcgm)

    async def _read_kernel_log(self) -> Part:
        # The clock of the kernel's records, as far as Python offers one.
        uptime = time.clock_gettime(time.CLOCK_MONOTONIC)
        reading = asyncio.to_thread(read_kernel_log, self._kernel_log, uptime=uptime, now=datetime.now(UTC))
        try:
            return await asyncio.wait_for(reading, LOG_LIMIT)
        except TimeoutError:
            return Part("", f"{self._kernel_log} was not read within {LOG_LIMIT:g} s")

    async def _ask_dcgm(self) -> Part | None:
        if not self._command or shutil.which(self._command[0]) is None:
            return None
        answer = await self._dcgm.run([], DCGM_LIMIT)
        notes = []
        if answer.exit_code is None:
            notes.append(f"{self._command[0]} did not end within {DCGM_LIMIT:g} s")
        elif answer.exit_code:
            notes.append(f"{self._command[0]} ended with exit code {answer.exit_code}")
        text = plain(answer.output.encode())
        if len(text) > DCGM_LONGEST:
            text = text[:DCGM_LONGEST]
            notes.append("only the first 16 KiB are kept")
        return Part(text, "; ".join(notes)[:LONGEST_NOTE])
