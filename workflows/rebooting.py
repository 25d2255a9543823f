"""The rung `reboot`: asked for once, by the way that policy names, and proven by another boot id."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from gpu_runbooks.activities.contracts import CloudActivities, ClusterActivities
from gpu_runbooks.activities.errors import FOR_A_PERSON, INSTANCE_NOT_RUNNING, INSTANCE_UNKNOWN
from gpu_runbooks.activities.model.node_task import NodeTaskKind
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.activities.model.repair import (
    AwaitReboot,
    InspectInstance,
    InstanceReport,
    RebootInstance,
    RebootMethod,
    RebootProof,
)
from gpu_runbooks.workflows.asking_agent import run_node_task
from gpu_runbooks.workflows.failures import cause_type, had_no_answer, in_words, was_never_sent
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder_steps import Repair
from gpu_runbooks.workflows.options import COMMAND_ONCE, INSPECT, LOOK_HOLDS, REBOOT_ONCE, until
from gpu_runbooks.workflows.proof import NotSentError, Proof, refuse_overtaken

NO_MACHINE = frozenset({INSTANCE_UNKNOWN, INSTANCE_NOT_RUNNING})
"""There is nothing that a reboot could reach."""

PASSING = frozenset({"pending", "stopping"})
"""States of an instance that end by themselves."""

AGENT_LIMIT = timedelta(minutes=2)
"""For an agent to ask its init. The machine goes down meanwhile: the proof is the boot id."""


async def reboot(incident: Incident, step: Repair) -> Proof:
    """Reboot the machine, once, and wait for a new boot id.

    Raises `NotSentError` where the call was surely not made. After an unknown outcome the wait for the proof
    follows, never a second call.
    """
    target, deadline = incident.target, workflow.now() + step.rung.timeout
    if (elsewhere := await _cannot_help(incident)) is not None:
        return elsewhere
    refuse_overtaken(incident, step)
    try:
        if unasked := await _ask(incident, step):
            return Proof(proven=False, text=unasked, tried=False)
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        if was_never_sent(error):
            raise NotSentError(in_words(error)) from None
        if cause_type(error) in FOR_A_PERSON:
            raise
        if cause_type(error) in NO_MACHINE:
            incident.skip_to(RungName.REPLACE)
            return Proof(proven=False, text=in_words(error), tried=False)
        incident.note(
            workflow.now(), f"outcome of the reboot call unknown, waiting for proof: {in_words(error)}"
        )
    try:
        proof: RebootProof = await workflow.execute_activity_method(
            ClusterActivities.await_reboot,
            AwaitReboot(identity=target, gpus=max(1, incident.gpus_seen), deadline=deadline),
            summary=f"wait for another boot id than {target.boot_id[:8]}, Ready and GPUs",
            **until(deadline, workflow.now()),
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        # On record as an attempt, lest it be asked for twice; and no reason for a stronger one.
        text = f"it was asked for, and what came of it is not known: {in_words(error)}"
        incident.question, incident.unanswered = text, had_no_answer(error)
        return Proof(proven=False, text=text)
    if proof.gone:
        incident.gone = True
        incident.skip_to(RungName.REPLACE)
    if not proof.proven:
        return Proof(proven=False, text=proof.message)
    text = f"boot id was {target.boot_id[:8]}; {proof.message}"
    return Proof(proven=True, text=text, target=target.model_copy(update={"boot_id": proof.boot_id}))


async def _cannot_help(incident: Incident) -> Proof | None:
    """Ask EC2 first: a machine that is to be retired, or does not run, goes straight to its replacement."""
    target = incident.target
    if not target.instance_id:
        return None
    try:
        report: InstanceReport = await workflow.execute_activity_method(
            CloudActivities.inspect_instance,
            InspectInstance(identity=target),
            summary=f"state and scheduled events of {target.instance_id}",
            **INSPECT,
        )
    except ActivityError as error:
        if is_cancelled_exception(error) or cause_type(error) in FOR_A_PERSON:
            raise
        if cause_type(error) in NO_MACHINE:
            incident.skip_to(RungName.REPLACE)
            return Proof(proven=False, text=in_words(error), tried=False)
        raise NotSentError(f"nothing was rebooted: {in_words(error)}") from None
    if report.retiring:
        incident.skip_to(RungName.REPLACE)
        return Proof(
            proven=False, text=f"not rebooted, a reboot does not help: {report.retiring}", tried=False
        )
    if report.state in PASSING:
        raise NotSentError(f"nothing was rebooted: instance {target.instance_id} is {report.state}")
    if report.state != "running":
        incident.skip_to(RungName.REPLACE)
        return Proof(
            proven=False, text=f"not rebooted: instance {target.instance_id} is {report.state}", tried=False
        )
    return None


async def _ask(incident: Incident, step: Repair) -> str:
    """Ask for the reboot, once. Returns why nobody was there to be asked; empty where it was asked."""
    target, method = incident.target, incident.plan.repair.reboot
    if method is RebootMethod.AGENT:
        asked = await run_node_task(
            incident,
            NodeTaskKind.REBOOT,
            attempt=step.attempt,
            timeout=min(AGENT_LIMIT, step.rung.timeout),
            summary=f"have the agent of {target.name} reboot it",
        )
        if asked.outcome == "not_started":
            return f"nothing was rebooted: {asked.message}"
        if asked.outcome != "succeeded":
            incident.note(workflow.now(), f"the agent's answer to the reboot: {asked.message}")
        return ""
    by, options = CloudActivities.reboot_instance, REBOOT_ONCE
    if method is RebootMethod.COMMAND:
        by, options = CloudActivities.run_reboot_command, COMMAND_ONCE
    await workflow.execute_activity_method(
        by,
        RebootInstance(
            identity=target,
            incident=incident.workflow_id,
            reason=incident.why(),
            not_after=workflow.now() + LOOK_HOLDS,
        ),
        summary=f"reboot {target.instance_id or target.name} by {method}",
        **options,
    )
    return ""
