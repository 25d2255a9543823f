"""The runbooks that only people start: thin names over the machine of every incident.

They share id, guards, budget, messages and audit with `NodeRemediation`, so that a node has one owner.
"""

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from gpu_runbooks.workflows import audit
    from gpu_runbooks.workflows.phases import Runbook
    from gpu_runbooks.workflows.runbook import IncidentLife


@workflow.defn
class DrainNode(IncidentLife):
    """Takes a node out of service: blocks it, drains it, and leaves it to the person who asked."""

    _runbook = Runbook.DRAIN

    @workflow.init
    def __init__(self, raw: Any = None) -> None:
        super().__init__(raw)

    @workflow.run
    async def run(self, raw: Any = None) -> audit.Result:
        """Block and drain; the block stays, marked as held."""
        return await self._climb(raw)


@workflow.defn
class ResetGpu(IncidentLife):
    """Resets one GPU of a node, or all: block, drain of the pods that have it, reset, validate, return."""

    _runbook = Runbook.RESET

    @workflow.init
    def __init__(self, raw: Any = None) -> None:
        super().__init__(raw)

    @workflow.run
    async def run(self, raw: Any = None) -> audit.Result:
        """Reset; where that is not proven, ask the person."""
        return await self._climb(raw)


@workflow.defn
class RebootNode(IncidentLife):
    """Reboots a node: block, drain, reboot with proof, validate, return."""

    _runbook = Runbook.REBOOT

    @workflow.init
    def __init__(self, raw: Any = None) -> None:
        super().__init__(raw)

    @workflow.run
    async def run(self, raw: Any = None) -> audit.Result:
        """Reboot; where that is not proven, ask the person."""
        return await self._climb(raw)


@workflow.defn
class ReplaceNode(IncidentLife):
    """Replaces the machine of a node: block, drain, terminate by its owner, validate the successor."""

    _runbook = Runbook.REPLACE

    @workflow.init
    def __init__(self, raw: Any = None) -> None:
        super().__init__(raw)

    @workflow.run
    async def run(self, raw: Any = None) -> audit.Result:
        """Replace; where that is not proven, ask the person."""
        return await self._climb(raw)


@workflow.defn
class ValidateNode(IncidentLife):
    """Tests the hardware of a node under load, on the GPUs that no pod has."""

    _runbook = Runbook.VALIDATE

    @workflow.init
    def __init__(self, raw: Any = None) -> None:
        super().__init__(raw)

    @workflow.run
    async def run(self, raw: Any = None) -> audit.Result:
        """Block, test, and return; a block that stood before stays."""
        return await self._climb(raw)


@workflow.defn
class ReturnNode(IncidentLife):
    """Gives a blocked node back: takes our block over, validates the hardware, and removes the block."""

    _runbook = Runbook.RETURN

    @workflow.init
    def __init__(self, raw: Any = None) -> None:
        super().__init__(raw)

    @workflow.run
    async def run(self, raw: Any = None) -> audit.Result:
        """Validate and return; a node without a block of ours is refused."""
        return await self._climb(raw)
