"""What an auditor reads of a job's record in the Temporal UI, in Markdown. Pure."""

from gpu_runbooks.activities.model.job import JobReport
from gpu_runbooks.workflows.job_record import Close, JobRecord
from gpu_runbooks.workflows.notifying import in_words
from gpu_runbooks.workflows.phases import Phase


def origin(report: JobReport) -> str:
    """What began the record, for the static details."""
    first, treatment = report.faults[0], report.treatment
    return (
        f"**Job** {report.job}\n\n"
        f"**First fault** {first.fault.source} {first.fault.code} on node {first.node.name}, seen first "
        f"{first.fault.first_seen:%Y-%m-%d %H:%M:%S} UTC, reported by {first.fault.reporter}: "
        f"{first.fault.summary or 'no summary'}\n\n"
        f"**Policy** {report.policy_digest}: rule `{treatment.rule}`, ladder `{treatment.ladder}`. The same "
        "code on several nodes of one job at one moment is the job's own: no node is touched"
    )


def live_details(record: JobRecord, phase: Phase, end: Close | None) -> str:
    """The record so far: codes, nodes, and who was told."""
    lines = [f"## {phase}" + (f": {end.outcome}" if end else ""), ""]
    if end:
        lines += [end.reason, ""]
    lines += [origin(record.first), "", "| code | faults |", "|---|---|"]
    lines += [f"| {code} | {count} |" for code, count in record.codes.items()]
    first = ", ".join(identity.name for identity in record.first_nodes)
    more = len(record.nodes) - len(record.first_nodes)
    lines += ["", f"**Nodes** {len(record.nodes)}: {first}" + (f" and {more} more" if more else "")]
    lines += ["", f"**Digest of all their names** {record.nodes_digest()}"]
    if record.told is not None:
        lines += ["", f"**Told** {in_words(record.told)}"]
    if record.problem:
        lines += ["", f"**Not told** {record.problem}"]
    return "\n".join(lines)
