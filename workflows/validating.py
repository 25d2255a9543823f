"""Validation: the gate before a node returns. Agent's measurement, loaded test, then the Node itself."""

from temporalio import workflow

from gpu_runbooks.activities.contracts import ClusterActivities
from gpu_runbooks.activities.model.node_task import NodeTaskKind, RunTestPod
from gpu_runbooks.activities.model.plan import Rung, RungName
from gpu_runbooks.workflows.asking_agent import run_node_task
from gpu_runbooks.workflows.blocking import observe
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.options import until
from gpu_runbooks.workflows.proof import Proof
from gpu_runbooks.workflows.validation import failures, judge_hardware, judge_node, untestable


async def validate(incident: Incident, rung: Rung) -> Proof:
    """Validate the incident's node; the first part that fails ends it."""
    target, expected = incident.target, incident.plan.expected
    attempt = incident.attempts(RungName.VALIDATE) + 1
    deadline = workflow.now() + rung.timeout

    task = await run_node_task(
        incident,
        NodeTaskKind.MEASURE,
        attempt=incident.measurements(),
        timeout=rung.timeout,
        summary=f"measure the hardware of {target.name} through its agent",
    )
    if task.outcome != "succeeded":
        return Proof(proven=False, text=f"the agent's measurement {task.outcome}: {task.message}")
    measured = judge_hardware(task.facts, expected, target.boot_id)
    if wrong := failures(measured):
        return Proof(proven=False, text=wrong)
    if why := untestable(task.facts):
        return Proof(proven=False, text=why, inconclusive=True)

    pod = await workflow.execute_activity_method(
        ClusterActivities.run_test_pod,
        RunTestPod(
            identity=target,
            incident=incident.workflow_id,
            run_id=incident.run_id,
            attempt=attempt,
            gpus=expected.gpus,
            free_only=incident.pods_stay,
            template=incident.plan.test_pod,
            deadline=deadline,
        ),
        summary=f"test pod on all {'free' if incident.pods_stay else expected.gpus} GPUs of {target.name}",
        **until(deadline, workflow.now()),
    )
    if pod.outcome != "succeeded":
        # A pod that never ran says nothing of the GPUs.
        never_ran = any(sign in pod.message for sign in ("not scheduled", "its container waits"))
        held = "Insufficient nvidia.com/gpu" in pod.message
        hint = ". Pods of the node hold its GPUs: wait for them or drain the node, then retry" if held else ""
        text = f"test pod {pod.pod} {pod.outcome}{hint}: {pod.message}"
        return Proof(proven=False, text=text, inconclusive=pod.outcome == "timed_out" and never_ran)

    seen = await observe(incident, f"node {target.name}: Ready, with its GPUs, and still blocked by us?")
    checks = judge_node(seen, expected)
    if wrong := failures(checks):
        return Proof(proven=False, text=wrong)
    names = ", ".join(check.name for check in (*measured, *checks))
    tested = f"test pod {pod.pod} succeeded on {pod.gpus} of {expected.gpus} GPUs"
    return Proof(proven=True, text=f"{names}: as expected; {tested}", seen=seen)
