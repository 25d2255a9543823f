"""Reports of a job's faults, and its record begun by them."""

from datetime import datetime

from incident.plans import CLUSTER, T0, fault, identity, plan
from temporalio.client import Client, WorkflowHandle

from gpu_runbooks.activities.model.job import JobFault, JobReport
from gpu_runbooks.activities.model.notify import KubernetesObject
from gpu_runbooks.activities.names import REMEDIATION_QUEUE, job_id
from gpu_runbooks.workflows.job_record import JobResult

JOB = KubernetesObject(
    api_version="kubeflow.org/v1", kind="PyTorchJob", namespace="team-blue", name="train", uid="u-1"
)


def job_report(
    nodes: list[str], code: str = "45", *, ladder: str = "notify", at: datetime = T0, **changes
) -> JobReport:
    """One fault on each of these nodes."""
    faults = tuple(
        JobFault(fault=fault(code, at=at, fingerprint=f"{node}-{code}"), node=identity(node))
        for node in nodes
    )
    fields = {
        "cluster": CLUSTER,
        "job": JOB,
        "faults": faults,
        "treatment": plan(ladder).treatment,
        "enforce": True,
        "policy_digest": "digest",
    }
    return JobReport(**(fields | changes))


async def start_job(client: Client, report: JobReport) -> WorkflowHandle:
    return await client.start_workflow(
        "JobRecovery",
        {"report": report.model_dump(mode="json")},
        id=job_id(CLUSTER, report.job.namespace, report.job.name),
        task_queue=REMEDIATION_QUEUE,
        result_type=JobResult,
    )
