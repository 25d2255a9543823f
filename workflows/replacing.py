"""The rung `replace`: the machine's own owner terminates it, and its successor is found and blocked.

Karpenter's machines go by their NodeClaim, those of an Auto Scaling group by the group, all others are
refused by the cloud worker, with the reason.
"""

from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from gpu_runbooks.activities.contracts import CloudActivities, ClusterActivities
from gpu_runbooks.activities.errors import AWS, NOT_VERIFIED
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import (
    AwaitNodeClaim,
    AwaitSuccessor,
    ClaimReplacement,
    ConfirmReplacement,
    DeleteNodeClaim,
    LaunchSuccessor,
    NodeClaimDeleted,
    NodeClaimGone,
    RemoveNode,
    ReplaceInstance,
    ReplacementProof,
    ReplaceRequested,
    SuccessorComing,
    SuccessorLaunched,
)
from gpu_runbooks.activities.names import CLOUD_QUEUE, NODE_POOL_LABEL
from gpu_runbooks.workflows.blocking import may_act
from gpu_runbooks.workflows.failures import cause_type, had_no_answer, in_words, was_never_sent
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder_steps import Repair
from gpu_runbooks.workflows.options import CLUSTER, LOOK_HOLDS, REPLACE_SOON, until
from gpu_runbooks.workflows.phases import Outcome
from gpu_runbooks.workflows.proof import CapacityLostError, NotSentError, Proof, refuse_overtaken

BUDGETS_LIMIT = timedelta(minutes=10)
"""How long Karpenter's budgets are waited for before the incident looks at its own slot and orders again."""

ROBBED_PATIENCE = timedelta(seconds=30)
"""How long a claim waits on after another incident took a machine of its list, before the group is asked for
a newer list. Doubled each time."""

AWS_UNSURE = frozenset({AWS, NOT_VERIFIED})
"""AWS was throttled or away, or does not show yet what it was asked for."""


async def replace(incident: Incident, step: Repair) -> Proof:
    """Replace the machine. Raises `NotSentError` where nothing was asked for, or it does not show yet."""
    started = workflow.now()
    deadline = started + step.rung.timeout
    if incident.karpenter:
        return await _by_node_claim(incident, started, deadline)
    return await _by_group(incident, step, started, deadline)


async def _by_node_claim(incident: Incident, started: datetime, deadline: datetime) -> Proof:
    """Delete the NodeClaim, see it and its Node gone, and claim the successor where one comes."""
    old = incident.target
    incident.terminated = incident.terminated or started
    if incident.node_claim is None:
        incident.node_claim = await _delete_node_claim(incident, deadline)
    deleted = incident.node_claim
    gone: NodeClaimGone = await workflow.execute_activity_method(
        ClusterActivities.await_node_claim,
        AwaitNodeClaim(
            identity=old,
            node_claim=deleted.node_claim,
            uid=deleted.uid,
            node_pool=deleted.node_pool,
            static=deleted.static,
            deadline=deadline,
            requested_at=deleted.requested_at,
        ),
        summary=f"wait until NodeClaim {deleted.node_claim} and node {old.name} are gone",
        **until(deadline, workflow.now()),
    )
    if not gone.gone:
        return Proof(proven=False, text=f"NodeClaim {deleted.node_claim} is not gone: {gone.message}")
    incident.gone = True
    text = f"NodeClaim {deleted.node_claim} and node {old.name} are gone"
    if not gone.successor:
        why = f"{text}; pool {deleted.node_pool or 'none'} launches another when pods need one"
        if incident.outcome is None:
            incident.end(Outcome.REPLACED, why)
        return Proof(proven=True, text=why)
    claimed = await _claim(incident, old, deadline, node_pool=deleted.node_pool)
    if not claimed.proven or claimed.identity is None:
        return Proof(proven=False, text=f"{text}, but {claimed.message}")
    return Proof(proven=True, text=f"{text}, {claimed.identity.name} came for it", target=claimed.identity)


async def _delete_node_claim(incident: Incident, deadline: datetime) -> NodeClaimDeleted:
    """Asked for again, this reads the state first: one that is going already is success.

    Raises `NotSentError` where Karpenter's budgets do not permit it yet: the incident looks at its own slot,
    block and orders again before it goes on waiting for them.
    """
    old, now = incident.target, workflow.now()
    soon = min(deadline, now + BUDGETS_LIMIT)
    incident.terminating = True
    try:
        deleted: NodeClaimDeleted = await workflow.execute_activity_method(
            ClusterActivities.delete_node_claim,
            DeleteNodeClaim(
                identity=old,
                incident=incident.workflow_id,
                run_id=incident.run_id,
                reason=incident.why(),
                not_after=now + LOOK_HOLDS,
                deadline=soon,
            ),
            summary=f"delete the NodeClaim of {old.name} when Karpenter's budgets permit it",
            **until(soon, now),
        )
    except ActivityError as error:
        if is_cancelled_exception(error) or not (was_never_sent(error) or had_no_answer(error)):
            raise
        raise NotSentError(in_words(error)) from None
    return deleted


async def _by_group(incident: Incident, step: Repair, started: datetime, deadline: datetime) -> Proof:
    """Terminate the instance in its group, claim the Node that joins for it, confirm both in EC2."""
    old = incident.target
    incident.terminated = incident.terminated or started
    if incident.requested is None:
        launched = None
        if incident.plan.repair.launch_first and not incident.gone:
            launched = await _launch_first(incident, deadline)
            if not await may_act(incident, "termination"):  # the launch took its time
                raise NotSentError("the node changed while its successor was launched")
            refuse_overtaken(incident, step)
        incident.requested = await _terminate(incident, launched)
    requested, incident.gone = incident.requested, True
    coming = await _see_it_coming(requested, deadline)
    patience = ROBBED_PATIENCE
    claimed = await _claim(incident, old, deadline, instances=coming.instances, patience=patience)
    while claimed.taken and incident.outcome is None and workflow.now() < deadline:
        patience *= 2
        coming = await _see_it_coming(requested, deadline)
        claimed = await _claim(incident, old, deadline, instances=coming.instances, patience=patience)
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
            seen_going=requested.state in {"shutting-down", "terminated"},
        ),
        summary=f"confirm in EC2: {old.instance_id} terminated, {new.instance_id} in {requested.group}",
        **until(deadline, workflow.now(), CLOUD_QUEUE),
    )
    if not confirmed.confirmed:
        # A successor is claimed: another attempt at this rung would terminate that one.
        text = f"{new.instance_id} was claimed, and EC2 does not confirm: {confirmed.message}"
        incident.question = text
        return Proof(proven=False, text=text, target=new)
    await workflow.execute_activity_method(
        ClusterActivities.remove_node,
        RemoveNode(identity=old),
        summary=f"remove the Node object of {old.instance_id}, if it is still there",
        **CLUSTER,
    )
    return Proof(
        proven=True, text=f"{old.instance_id} terminated, {new.instance_id} is node {new.name}", target=new
    )


async def _launch_first(incident: Incident, deadline: datetime) -> SuccessorLaunched | None:
    """Have the group launch one more; None where the old one is going already, and it launches anyway.

    Raises `NotSentError` where it cannot: then nothing is terminated.
    """
    old = incident.target
    launched: SuccessorLaunched = await workflow.execute_activity_method(
        CloudActivities.launch_successor,
        LaunchSuccessor(identity=old, incident=incident.workflow_id, deadline=deadline),
        summary=f"launch the successor of {old.instance_id} before it is terminated",
        **until(deadline, workflow.now(), CLOUD_QUEUE),
    )
    if launched.going:
        return None
    if not launched.launched:
        raise NotSentError(f"nothing was terminated: {launched.message}")
    return launched


async def _terminate(incident: Incident, launched: SuccessorLaunched | None) -> ReplaceRequested:
    """Asked for again, this reads the state first: one that is going already is not terminated twice."""
    old = incident.target
    kept = "the group shrinks back by it" if launched else "capacity kept"
    incident.terminating = True
    try:
        requested: ReplaceRequested = await workflow.execute_activity_method(
            CloudActivities.replace_instance,
            ReplaceInstance(
                identity=old,
                incident=incident.workflow_id,
                reason=incident.why(),
                not_after=workflow.now() + LOOK_HOLDS,
                launched=launched,
            ),
            summary=f"terminate {old.instance_id} in its Auto Scaling group, {kept}",
            **REPLACE_SOON,
        )
    except ActivityError as error:
        unsure = was_never_sent(error) or had_no_answer(error) or cause_type(error) in AWS_UNSURE
        if is_cancelled_exception(error) or not unsure:
            raise
        raise NotSentError(in_words(error)) from None
    return requested


async def _see_it_coming(requested: ReplaceRequested, deadline: datetime) -> SuccessorComing:
    """Wait until the group has launched the successor. Raises `CapacityLostError` where it cannot."""
    coming: SuccessorComing = await workflow.execute_activity_method(
        CloudActivities.await_successor,
        AwaitSuccessor(
            replaced=requested.instance_id,
            group=requested.group,
            desired_capacity=requested.desired_capacity,
            requested_at=requested.requested_at,
            reservation=requested.reservation,
            deadline=deadline,
        ),
        summary=f"wait until {requested.group} has launched the successor of {requested.instance_id}",
        **until(deadline, workflow.now(), CLOUD_QUEUE),
    )
    if coming.capacity_lost:
        raise CapacityLostError(f"{requested.instance_id} was terminated, but {coming.message}")
    return coming


async def _claim(
    incident: Incident,
    old: NodeIdentity,
    deadline: datetime,
    *,
    instances: tuple[str, ...] = (),
    node_pool: str = "",
    patience: timedelta = timedelta(0),
) -> ReplacementProof:
    """Claim the Node of the successor: of the same owner, or a stranger's node of the pool would be taken."""
    of_owner = {NODE_POOL_LABEL: node_pool} if node_pool else {}
    claimed: ReplacementProof = await workflow.execute_activity_method(
        ClusterActivities.claim_replacement,
        ClaimReplacement(
            replaced=old,
            pool_selector=incident.plan.pool_selector | of_owner,
            incident=incident.workflow_id,
            run_id=incident.run_id,
            rule=incident.plan.treatment.rule,
            reason=f"replacement of {old.instance_id or old.name}, not validated yet",
            launched_after=incident.terminated or workflow.now(),
            instances=instances,
            deadline=deadline,
            patience=patience,
        ),
        summary=f"wait for the node that replaces {old.name}, claim and block it",
        **until(deadline, workflow.now()),
    )
    return claimed
