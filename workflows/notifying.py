"""The step that tells the owner of a workload about a fault of it, and touches nothing."""

from temporalio import workflow

from gpu_runbooks.activities.contracts import ClusterActivities
from gpu_runbooks.activities.model.notify import NotifyOwner, OwnerNotified
from gpu_runbooks.activities.model.plan import Rung, RungName
from gpu_runbooks.workflows.blocking import still_there
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.options import CLUSTER
from gpu_runbooks.workflows.phases import Phase
from gpu_runbooks.workflows.recording import enter, record


async def notify_owner(incident: Incident, rung: Rung) -> None:
    """Tell the owners of the pods on the node about each fault that is theirs, one notice a fault."""
    if not await still_there(incident, "telling the owner"):
        return
    enter(incident, Phase.NOTIFYING)
    started, (fault, *_) = workflow.now(), incident.unnotified
    request = NotifyOwner(incident=incident.workflow_id, fault=fault, nodes=(incident.target,))
    told = await send(request, rung)
    incident.unnotified = [each for each in incident.unnotified if each.fingerprint != fault.fingerprint]
    proof = in_words(told)
    record(incident, RungName.NOTIFY_OWNER, started, proven=told.total > 0, proof=proof)


async def send(request: NotifyOwner, rung: Rung) -> OwnerNotified:
    """Have the Events written, within the time of the rung."""
    fault = request.fault
    options = {**CLUSTER, "schedule_to_close_timeout": rung.timeout}
    return await workflow.execute_activity_method(
        ClusterActivities.notify_owner,
        request,
        summary=f"tell the owner about {fault.source} {fault.code} on {request.nodes[0].name}",
        **options,
    )


def in_words(told: OwnerNotified) -> str:
    """Who has the notice, and who has not."""
    more = f" and {told.total - len(told.objects)} more" if told.total > len(told.objects) else ""
    named = ", ".join(told.objects)
    text = f"the API server keeps an Event on {named}{more}" if told.total else "nobody was told"
    return f"{text}; {told.left_out}" if told.left_out else text
