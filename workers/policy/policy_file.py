"""The policy file of a role: read at the start, and again whenever it changes.

A role that needs the policy does not start without a good one. A later file that cannot be used changes
nothing: the policy before it stays, and the log says so until the file is mended.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from gpu_runbooks.activities.errors import POLICY_REFUSED, refusal
from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.plan import Plan
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workflows.policy.file import PolicyError, load_policy
from gpu_runbooks.workflows.policy.planning import PlanRefused, plan

INTERVAL = 10.0
"""Seconds between two looks at the file. The kubelet itself takes a minute to bring a changed ConfigMap."""

log = logging.getLogger(__name__)


class PolicyFile:
    """The policy that counts now, bound to cluster and namespace of the role.

    Raises `PolicyError` with every mistake and its line, and `OSError` where there is no such file.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._text = self._read()
        self.policy = load_policy(self._text)
        self.problem = ""
        """Why the file as it is now does not count; empty where it does."""

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
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), INTERVAL)
            self.reload()

    def reload(self) -> None:
        """Take the file as it is now, if it can be used. Never raises."""
        try:
            text = self._read()
            if text == self._text and not self.problem:
                return
            policy = load_policy(text)
        except (OSError, UnicodeDecodeError, PolicyError) as error:
            if str(error) != self.problem:
                self.problem = str(error)
                log.error("policy %s stays, the file does not count: %s", self.policy.digest, error)  # noqa: TRY400
            return
        if policy.digest != self.policy.digest:
            log.info("policy %s counts from now, before it %s", policy.digest, self.policy.digest)
        self._text, self.policy, self.problem = text, policy, ""

    def _read(self) -> str:
        try:
            return self._settings.policy.read_text(encoding="utf-8")
        except OSError as error:
            raise OSError(f"the policy file of GPU_RUNBOOKS_POLICY cannot be read: {error}") from error
