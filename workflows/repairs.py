"""The three repairs: each asks for its act and comes back with a proof, or with why there is none."""

from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from gpu_runbooks.activities.contracts import CloudActivities, ClusterActivities
from gpu_runbooks.activities.errors import (
    AWS,
    FOR_A_PERSON,
    INSTANCE_NOT_RUNNING,
    INSTANCE_UNKNOWN,
    NOT_VERIFIED,
)
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.node_task import DeleteNodeTask, NodeTaskKind, NodeTaskResult, RunNodeTask
from gpu_runbooks.activities.model.repair import (
    AwaitReboot,
    ClaimReplacement,
    ConfirmReplacement,
    RebootInstance,
    ReplaceInstance,
)
from gpu_runbooks.activities.names import CLOUD_QUEUE
from gpu_runbooks.workflows.failures import cause_type, in_words, was_never_sent
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder import Repair
from gpu_runbooks.workflows.options import CLUSTER, LOOK_HOLDS, REBOOT_ONCE, REPLACE_SOON, until

AGENT_START_LIMIT = timedelta(seconds=60)
"""An agent takes a task within seconds; one that has not after this is gone."""


AWS_UNSURE = frozenset({AWS, NOT_VERIFIED})
"""AWS was throttled or away, or does not show yet what it was asked for."""


class NotSentError(Exception):
    """The act was not asked for: the incident looks at the node again before it tries once more."""


@dataclass(frozen=True)
class Proof:
    """Outcome of a repair or a validation."""

    proven: bool
    text: str
    target: NodeIdentity | None = None
    """The machine as the act left it, where it changed."""
    inconclusive: bool = False
    """Nothing was measured that speaks against the machine: a person is asked, nothing stronger is done."""


async def reset_gpu(incident: Incident, step: Repair) -> Proof:
    """Have the node's own agent reset the GPU, and prove it through NVML."""
    uuid, address = incident.reset_gpu = incident.faulty_gpu()
    result = await run_node_task(
        incident,
        NodeTaskKind.RESET_GPU,
        attempt=step.attempt,
        timeout=step.rung.timeout,
        summary=f"reset {uuid or address or 'all GPUs'} of {incident.target.name}",
        gpu_uuid=uuid,
        gpu_pci_address=address,
    )
    message = result.message.partition("\n")[0][:200]
    return Proof(result.outcome == "succeeded", f"{result.outcome}: {message}")


async def reboot(incident: Incident, step: Repair) -> Proof:
    """Reboot the instance, once, and wait for a new boot id."""
    target, deadline = incident.target, workflow.now() + step.rung.timeout
    try:
        await workflow.execute_activity_method(
            CloudActivities.reboot_instance,
            RebootInstance(
                identity=target,
                incident=incident.workflow_id,
                reason=incident.why(),
                not_after=workflow.now() + LOOK_HOLDS,
            ),
            summary=f"reboot {target.instance_id}",
            **REBOOT_ONCE,
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        if was_never_sent(error):
            raise NotSentError(in_words(error)) from None
        if cause_type(error) in FOR_A_PERSON:
            raise
        if cause_type(error) in {INSTANCE_UNKNOWN, INSTANCE_NOT_RUNNING}:
            return Proof(proven=False, text=in_words(error))
        incident.note(
            workflow.now(), f"outcome of the reboot call unknown, waiting for proof: {in_words(error)}"
        )
    proof = await workflow.execute_activity_method(
        ClusterActivities.await_reboot,
        AwaitReboot(identity=target, deadline=deadline),
        summary=f"wait for another boot id than {target.boot_id[:8]} and Ready",
        **until(deadline, workflow.now()),
    )
    if not proof.proven:
        return Proof(proven=False, text=proof.message)
    text = f"boot id {target.boot_id[:8]} became {proof.boot_id[:8]}, and Ready after it"
    return Proof(proven=True, text=text, target=target.model_copy(update={"boot_id": proof.boot_id}))


async def replace(incident: Incident, step: Repair) -> Proof:
    """Terminate the instance in its group, claim the Node that joins for it, confirm both in EC2."""
    old, started = incident.target, workflow.now()
    deadline = started + step.rung.timeout
    try:
        requested = await workflow.execute_activity_method(
            CloudActivities.replace_instance,
            ReplaceInstance(
                identity=old,
                incident=incident.workflow_id,
                reason=incident.why(),
                not_after=started + LOOK_HOLDS,
            ),
            summary=f"terminate {old.instance_id} in its Auto Scaling group, capacity kept",
            **REPLACE_SOON,
        )
    except ActivityError as error:
        # Asked for again, this reads the state first: one that is going already is not terminated twice.
        if is_cancelled_exception(error) or not (was_never_sent(error) or cause_type(error) in AWS_UNSURE):
            raise
        raise NotSentError(in_words(error)) from None
    claimed = await workflow.execute_activity_method(
        ClusterActivities.claim_replacement,
        ClaimReplacement(
            replaced=old,
            pool_selector=incident.plan.pool_selector,
            incident=incident.workflow_id,
            run_id=incident.run_id,
            rule=incident.plan.treatment.rule,
            reason=f"replacement of {old.instance_id}, not validated yet",
            launched_after=started,
            deadline=deadline,
        ),
        summary=f"wait for the node that replaces {old.name}, claim and block it",
        **until(deadline, workflow.now()),
    )
    if not claimed.proven or claimed.identity is None:
        return Proof(proven=False, text=f"{old.instance_id} was terminated, but {claimed.message}")
    new = claimed.identity
    confirmed = await workflow.execute_activity_method(
        CloudActivities.confirm_replacement,
        ConfirmReplacement(
            replaced=old.instance_id,
            replacement=new.instance_id,
            group=requested.group,
            desired_capacity=requested.desired_capacity,
            deadline=deadline,
        ),
        summary=f"confirm in EC2: {old.instance_id} terminated, {new.instance_id} in {requested.group}",
        **until(deadline, workflow.now(), CLOUD_QUEUE),
    )
    text = f"{old.instance_id} terminated, {new.instance_id} is node {new.name}"
    if not confirmed.confirmed:
        # A successor is claimed: another attempt at this rung would terminate that one.
        text = f"{new.instance_id} was claimed, and EC2 does not confirm: {confirmed.message}"
        incident.question = text
    return Proof(confirmed.confirmed, text, target=new)


async def run_node_task(
    incident: Incident,
    kind: NodeTaskKind,
    *,
    attempt: int,
    timeout: timedelta,
    summary: str,
    gpu_uuid: str | None = None,
    gpu_pci_address: str | None = None,
) -> NodeTaskResult:
    """Have the agent of the incident's node do something.

    The task is deleted by an activity of its own, after its result is in the history: a death in between
    can then never cause a second reset.
    """
    now = workflow.now()
    result: NodeTaskResult = await workflow.execute_activity_method(
        ClusterActivities.run_node_task,
        RunNodeTask(
            identity=incident.target,
            incident=incident.workflow_id,
            run_id=incident.run_id,
            kind=kind,
            attempt=attempt,
            gpu_uuid=gpu_uuid,
            gpu_pci_address=gpu_pci_address,
            start_deadline=now + min(AGENT_START_LIMIT, timeout / 2),
            deadline=now + timeout,
        ),
        summary=summary,
        **until(now + timeout, now),
    )
    await workflow.execute_activity_method(
        ClusterActivities.delete_node_task,
        DeleteNodeTask(task=result.task),
        summary=f"remove the finished task {result.task}",
        **CLUSTER,
    )
    return result
