"""Policy as the workers use it: the file of the settings, read once at the start."""

from collections.abc import Callable, Mapping

from gpu_runbooks.activities.errors import POLICY_REFUSED, refusal
from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.plan import Plan
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workflows.planning import PlanRefused, plan
from gpu_runbooks.workflows.policy import Policy
from gpu_runbooks.workflows.policy_file import load_policy


def read_policy(settings: Settings) -> Policy:
    """Read and check the whole policy file.

    Raises `PolicyError` with every mistake and its line, and `OSError` where there is no such file. A role
    that needs the policy does not start without one.
    """
    try:
        text = settings.policy.read_text(encoding="utf-8")
    except OSError as error:
        raise OSError(f"the policy file of GPU_RUNBOOKS_POLICY cannot be read: {error}") from error
    return load_policy(text)


def planner(
    settings: Settings, policy: Policy
) -> Callable[[Fault, NodeIdentity, Mapping[str, str], str | None], Plan]:
    """Bind policy, cluster and the namespace of test pods.

    The result raises `PolicyRefused` where policy says no.
    """

    def resolve(
        fault: Fault, identity: NodeIdentity, labels: Mapping[str, str], ladder: str | None = None
    ) -> Plan:
        try:
            made = plan(policy, fault, identity, labels, settings.test_namespace, ladder)
        except PlanRefused as refused:
            raise refusal(POLICY_REFUSED, str(refused)) from refused
        return made.model_copy(update={"cluster": settings.cluster})

    return resolve
