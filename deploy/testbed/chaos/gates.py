"""Gates: each holds an incident in one step for as long as wanted, by the world around it and not by time."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH
from testbed import gpus
from testbed.api_faults import hold
from testbed.aws_faults import Moment
from testbed.chaos.subject import PROTECTED, Subject
from testbed.fleet import is_ready


class Gate(ABC):
    """Closed when it is made."""

    brief = False
    """Whoever waits before it gives up after seconds: it is opened as soon as the disturbance is there."""

    @abstractmethod
    async def reached(self) -> bool:
        """Whether the incident stands before it."""

    @abstractmethod
    async def open(self) -> None:
        """Let the incident go on."""


class CallGate(Gate):
    """Holds a call to the API server: one of the product that fits.

    `phase`: of the incident while it waits for the answer. One that gave the call up has gone on.
    """

    def __init__(self, subject: Subject, method: str, path: str, body: str = "", phase: str = "") -> None:
        self._subject, self._phase = subject, phase
        self._proxy = subject.testbed.proxy
        self._opened = asyncio.Event()
        self._rule = self._proxy.inject(hold(self._opened), method=method, path=path, body=body, times=None)

    async def reached(self) -> bool:
        if not (self._rule.met and self._phase):
            return bool(self._rule.met)
        seen = await self._subject.status()
        return seen is not None and seen.phase == self._phase

    async def open(self) -> None:
        self._proxy.forget(self._rule)
        self._opened.set()


class AwsGate(Gate):
    """Holds a call to AWS before it takes effect, or its answer. The product waits 10 s for an answer."""

    brief = True

    def __init__(self, subject: Subject, moment: Moment, action: str) -> None:
        self._faults = subject.testbed.cloud.faults
        self._call: tuple[Moment, str, str] = (moment, action, subject.instance)
        self._faults.hold(*self._call)

    async def reached(self) -> bool:
        return self._faults.is_met(*self._call)

    async def open(self) -> None:
        self._faults.let_go(*self._call)


class PodGate(Gate):
    """Holds a drain by a pod that may not be disrupted."""

    def __init__(self, subject: Subject, path: str) -> None:
        self._subject, self._path = subject, path

    @classmethod
    async def close(cls, subject: Subject) -> "PodGate":
        return cls(subject, await subject.run_pod("keep", PROTECTED))

    async def reached(self) -> bool:
        seen = await self._subject.status()
        return seen is not None and seen.phase == "draining" and bool(seen.blockers)

    async def open(self) -> None:
        body = {"metadata": {"annotations": dict.fromkeys(PROTECTED)}}
        await self._subject.testbed.kubernetes.request(
            "PATCH", self._path, body=body, content_type=MERGE_PATCH
        )


class ResetGate(Gate):
    """Holds a reset: nvidia-smi has begun, and takes its time."""

    def __init__(self, subject: Subject) -> None:
        self._state = subject.testbed.agents.machine(subject.node).gpus
        gpus.change_node(self._state, reset=gpus.ResetAnswer.SLOW)

    async def reached(self) -> bool:
        return gpus.read_state(self._state).resets > 0

    async def open(self) -> None:
        gpus.change_node(self._state, reset=gpus.ResetAnswer.DONE)


class DownGate(Gate):
    """Holds a reboot: the machine is down and does not come back yet."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    @classmethod
    async def close(cls, subject: Subject) -> "DownGate":
        await subject.testbed.fleet.set_reboot_outcome(subject.node, "never")
        return cls(subject)

    async def reached(self) -> bool:
        return not is_ready(await self._subject.testbed.fleet.node(self._subject.node))

    async def open(self) -> None:
        await self._subject.testbed.fleet.set_reboot_outcome(self._subject.node, None)


class PhaseGate(Gate):
    """Holds nothing: the incident stays in this phase by itself, until `then` is done."""

    def __init__(
        self, subject: Subject, phase: str, then: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._subject, self._phase, self._then = subject, phase, then

    async def reached(self) -> bool:
        seen = await self._subject.status()
        return seen is not None and seen.phase == self._phase

    async def open(self) -> None:
        if self._then is not None:
            await self._then()


class LateGate(Gate):
    """A gate that cannot be held for long, behind one that can: `approach` lets the incident come to it."""

    def __init__(self, first: Gate, then: Gate) -> None:
        self.first, self._then = first, then
        self.brief = then.brief

    async def approach(self) -> None:
        await self.first.open()

    async def reached(self) -> bool:
        return await self._then.reached()

    async def open(self) -> None:
        await self._then.open()
