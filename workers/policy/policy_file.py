"""The policy file of a role: read at the start, and again whenever it changes.

A role that needs the policy does not start without a good one. A later file that cannot be used changes
nothing: the policy before it stays, and the log and the intake's `/healthz` say so until the file is mended.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gpu_runbooks.activities.errors import POLICY_REFUSED, refusal
from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.plan import Plan
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workflows.policy.file import PolicyError, load_policy
from gpu_runbooks.workflows.policy.planning import PlanRefused, plan
from gpu_runbooks.workflows.policy.yaml_lines import LARGEST

INTERVAL = 10.0
"""Seconds between two looks at the file. The kubelet itself takes a minute to bring a changed ConfigMap."""

SETTLES = 1.0
"""Seconds after which a changed file is looked at again: one that is being written changes meanwhile."""

REMINDER = 600.0
"""Seconds between two log lines about the same problem."""

MOST_PLACES = 5

log = logging.getLogger(__name__)


class PolicyFile:
    """The policy that counts now, bound to cluster and namespace of the role.

    Raises `PolicyError` with every mistake and its line, and `OSError` where there is no such file.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._seen: bytes | str = self._read()
        self._taken: bytes | str = self._seen
        self.policy = load_policy(self._seen)
        self.problem = ""
        """Why the file as it is now does not count; empty where it does."""
        self.problem_at = ""
        """The same without a word of the file: lines and fields. Whoever asks for our health may read it."""
        self._said = 0.0

    def plan(
        self, fault: Fault, identity: NodeIdentity, labels: Mapping[str, str], ladder: str | None = None
    ) -> Plan:
        """The plan for a fault on a node. Raises `ApplicationError` POLICY_REFUSED where policy says no."""
        try:
            made = plan(self.policy, fault, identity, labels, self._settings.test_namespace, ladder)
        except PlanRefused as refused:
            raise refusal(POLICY_REFUSED, str(refused)) from refused
        return made.model_copy(update={"cluster": self._settings.cluster})

    async def watch(self, stop: asyncio.Event) -> None:
        """Look at the file until `stop` is set."""
        pause = INTERVAL
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause)
            # Apart from the loop: a large file takes seconds to read, and webhooks wait for nobody.
            pause = INTERVAL if await asyncio.to_thread(self.look) else SETTLES

    def look(self) -> bool:
        """Look at the file; whether it was the same at the look before. Never raises.

        A changed file counts, or is complained about, once it is the same at two looks: half a file can be
        a policy too, with its last rules missing.
        """
        try:
            found: bytes | str = self._read()
        except OSError as error:
            found = str(error)
        settled, self._seen = found == self._seen, found
        if settled and found != self._taken:
            self._taken = found
            self._take(found)
        elif self.problem and settled:
            self._remind()
        return settled

    def _take(self, found: bytes | str) -> None:
        try:
            if isinstance(found, str):
                raise OSError(found)
            policy = load_policy(found)
            policy.digest  # noqa: B018 - worked out here, where an error of it changes nothing
        except (OSError, PolicyError) as error:
            self.problem, self.problem_at = str(error), _places(error)
            self._remind(at_once=True)
            return
        except Exception as error:  # an error of ours ends no role that has a good policy
            self.problem = f"reading it failed, which is a bug: {type(error).__name__}: {error}"
            self.problem_at = "the policy file does not count, reading it failed: see the log"
            log.exception("the policy file could not be read")
            self._remind(at_once=True)
            return
        if policy.digest != self.policy.digest:
            log.info("policy %s counts from now, before it %s", policy.digest, self.policy.digest)
        elif self.problem:
            log.info("the policy file can be used again, and says what counted meanwhile: %s", policy.digest)
        self.policy, self.problem, self.problem_at = policy, "", ""

    def _remind(self, at_once: bool = False) -> None:
        if at_once or self._clock() - self._said >= REMINDER:
            self._said = self._clock()
            log.error("policy %s stays, the file does not count: %s", self.policy.digest, self.problem)

    def _read(self) -> bytes:
        try:
            return read_policy_file(self._settings.policy)
        except OSError as error:
            raise OSError(f"the policy file of GPU_RUNBOOKS_POLICY cannot be read: {error}") from error


def _places(error: OSError | PolicyError) -> str:
    if isinstance(error, OSError):
        return "the policy file cannot be read"
    places = [f"line {each.line}: {each.field or 'the file'}" for each in error.problems[:MOST_PLACES]]
    more = f"; and {len(error.problems) - MOST_PLACES} more" if len(error.problems) > MOST_PLACES else ""
    return f"the policy file does not count, errors in {'; '.join(places)}{more}"


def read_policy_file(file: Path) -> bytes:
    """Content of a policy file, and no more of it than shows that it is too large. Raises `OSError`."""
    with file.open("rb") as opened:
        return opened.read(LARGEST + 1)
