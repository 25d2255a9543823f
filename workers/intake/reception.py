"""What every source hands its faults to: policy is asked, and the fault goes to the incident of its node.

A source says what is wrong and on which live Node. It never decides what is done about it.
"""

import logging
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass

from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.model.fault import ConditionCleared, Fault
from gpu_runbooks.activities.model.fleet import AlertsTruncated
from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.activities.nodes.node import NODES, identity_of
from gpu_runbooks.workers.intake.delivered import Delivered, TemporalUnavailableError
from gpu_runbooks.workers.intake.earlier import Earlier
from gpu_runbooks.workers.intake.fleet import Fleet
from gpu_runbooks.workers.intake.incidents import Incidents
from gpu_runbooks.workers.intake.job_records import JobRecords
from gpu_runbooks.workers.intake.jobs import Jobs
from gpu_runbooks.workers.intake.metrics import Metrics
from gpu_runbooks.workers.intake.staleness import wrong_on
from gpu_runbooks.workers.policy.policy_file import PolicyFile
from gpu_runbooks.workflows.policy.node_conditions import watched_conditions
from gpu_runbooks.workflows.policy.policy import Policy

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """What became of one signal."""

    signal: str
    """What the source calls it: an alert's name, a condition's type, an event's code."""
    status: str
    """started, joined, duplicate, ignored, refused, or unavailable: not taken, to be sent again."""
    node: str = ""
    reason: str = ""
    workflow_id: str = ""
    run_id: str = ""


class Reception:
    """Takes faults of all sources. The policy may be another one with every call."""

    def __init__(self, kubernetes: Kubernetes, incidents: Incidents, policy_file: PolicyFile) -> None:
        self.kubernetes = kubernetes
        self._incidents = incidents
        self._policy_file = policy_file
        self._earlier = Earlier(incidents.client, incidents.cluster)
        self._jobs = Jobs(kubernetes, JobRecords(incidents.client, incidents.cluster))
        self.fleet = Fleet()
        self.metrics = Metrics(lambda: bool(policy_file.problem_at))
        self._source = ""

    def of_source(self, name: str) -> "Reception":
        """The same reception, as the source of this name has it: what becomes of its signals is counted."""
        its_own = copy(self)
        its_own._source = name  # noqa: SLF001  one of our own
        return its_own

    @property
    def policy(self) -> Policy:
        """The policy that counts now."""
        return self._policy_file.policy

    def policy_standing(self) -> dict[str, str]:
        """Digest of the policy that counts, and where its file errs as it is now; no word of the file."""
        return {"policy": self.policy.digest, "policy_problem": self._policy_file.problem_at}

    async def find_node(self, name: str) -> Object | None:
        """The live Node of this name, None where there is none. Raises `KubernetesError`."""
        return await self.kubernetes.find(f"{NODES}/{name}")

    async def take(
        self, signal: str, fault: Fault, node: Object, note: str = "", *, known_refusal: str = ""
    ) -> Answer:
        """Take a fault of a live Node. Every answer but `unavailable` is final.

        `known_refusal`: what the audit has already, where the fault was refused before.
        """
        identity, labels = identity_of(node), node["metadata"].get("labels") or {}
        try:
            fault = await self._earlier.counted(fault, identity, self.policy)
            plan = self._policy_file.plan(fault, identity, labels)
            report = FaultReport(fault=fault, plan=plan)
            wrong = wrong_on(node, plan.expected, watched_conditions(self.policy))
            delivered = await self._of_job(report, wrong) if plan.treatment.application else None
            if delivered is None:
                max_age = self.policy.intake.max_age
                delivered = await self._incidents.deliver(report, note, wrong=wrong, max_age=max_age)
                self._earlier.note(fault, identity)
        except ApplicationError as refused:
            answer = Answer(signal, "refused", identity.name, refused.message)
            return answer if refused.message == known_refusal else self.told(answer)
        except (TemporalUnavailableError, KubernetesError) as error:
            return self.told(Answer(signal, "unavailable", identity.name, str(error)))
        return self.told(Answer(signal, node=identity.name, **asdict(delivered)))

    async def _of_job(self, report: FaultReport, wrong: Sequence[str]) -> Delivered | None:
        """What became of an application's fault that is its job's; None where it is the node's alone.

        A node with an open incident keeps its faults: a drain or a reset may have caused them.
        """
        intake = self.policy.intake
        answered, is_open = await self._incidents.standing(report, wrong=wrong, max_age=intake.max_age)
        if is_open:
            return None
        answered = answered or await self._jobs.answered(report.fault)
        return answered or await self._jobs.take(report, intake)

    async def cleared(self, node: str, cleared: ConditionCleared) -> None:
        """Pass on that a condition of a node is good again. Raises `TemporalUnavailableError`."""
        await self._incidents.clear(node, cleared)

    async def tell_guard(self, hidden: AlertsTruncated) -> None:
        """Tell the guard of the fleet of nodes that nobody named. Raises `TemporalUnavailableError`."""
        await self._incidents.tell_guard(hidden)

    def told(self, answer: Answer) -> Answer:
        """Leave the audit line of an answer, count it, and pass it on."""
        log.info("%s", answer)
        self.metrics.answered(self._source, answer.status)
        return answer
