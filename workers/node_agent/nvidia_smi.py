"""Runs `nvidia-smi --gpu-reset` and classifies its answer. What it says is never taken for what it did."""

import re
from collections.abc import Sequence
from enum import StrEnum

from gpu_runbooks.workers.node_agent.tool import Tool, ToolAnswer

TOOL = "nvidia-smi"


class Outcome(StrEnum):
    """What became of a reset, or of the attempt."""

    DONE = "done"
    BUSY = "busy"
    """Somebody holds a GPU."""
    UNSUPPORTED = "unsupported"
    LOST = "lost"
    """The GPU is not there to be reset."""
    UNRESPONSIVE = "driver-unresponsive"
    """No answer in time: a second reset would hang as well, only a reboot helps."""
    UNKNOWN = "unknown"
    UNVERIFIED = "unverified"
    """Said to be done, and the proof does not hold."""


class ResetTool(Tool):
    """The stand of nvidia-smi on this node."""

    def __init__(self, command: Sequence[str] = (TOOL,)) -> None:
        super().__init__(command)

    async def reset(self, uuids: Sequence[str], limit: float) -> ToolAnswer:
        """Ask for a reset of these GPUs, of all in one command where none is named.

        Returns about `limit` seconds later at the latest.
        """
        named = ["-i", ",".join(uuids)] if uuids else []
        return await self.run(["--gpu-reset", *named], limit)


IN_USE = re.compile(r"\bin use\b|being used by|used by another", re.IGNORECASE)
GONE = re.compile(r"GPU is lost|fallen off the bus|No devices were found", re.IGNORECASE)
NOT_SUPPORTED = re.compile(r"not supported", re.IGNORECASE)

EXIT_CODES = {0: Outcome.DONE, 3: Outcome.UNSUPPORTED, 15: Outcome.LOST}
"""Of nvidia-smi's own return codes, those that need no reading of the text. It gives 255 for many things."""


def classify(answer: ToolAnswer) -> Outcome:
    """What the answer means. The text beats the exit code: a GPU in use was reported with exit 0."""
    if answer.exit_code is None:
        return Outcome.UNRESPONSIVE
    for pattern, outcome in (
        (IN_USE, Outcome.BUSY),
        (GONE, Outcome.LOST),
        (NOT_SUPPORTED, Outcome.UNSUPPORTED),
    ):
        if pattern.search(answer.output):
            return outcome
    return EXIT_CODES.get(answer.exit_code, Outcome.UNKNOWN)
