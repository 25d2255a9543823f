"""Codes in rules for faults that no source ever says, so that the rule would never decide. Pure.

Of the lines of the kernel log and of NVML the names are ours and all known. AWS may say more than our table
has, and a Node may have any condition: there only a slip in a known name is told, and what has no such shape.
"""

import re
from collections.abc import Collection
from difflib import get_close_matches

from gpu_runbooks.activities.aws.scheduled_events import CODE_OF_HEALTH
from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.workflows.policy.condition_reasons import AGENT_OF, RECOVERY_ACTION, known_reasons
from gpu_runbooks.workflows.policy.faults import NUMBERED
from gpu_runbooks.workflows.policy.known_codes import aws_events, kernel_log_codes
from gpu_runbooks.workflows.policy.node_conditions import condition_types

MANUAL = "manual"
"""The only code of a fault that a person starts a runbook with."""

AWS_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{2,127}", re.ASCII)

NEAR = 0.95
"""How alike two names are of which one is the other with a slip: one letter of ten or more."""

MOST_SLIPS = 2
"""Letters that one of them has more than the other."""


def never_said(source: FaultSource, code: str) -> str | None:
    """Why no fault of a source has a code, and what to write; None where one may have it."""
    if source in NUMBERED:
        return f"{source} 0 says that there was none, so that no fault has it" if code == "0" else None
    if source is FaultSource.MANUAL and code != MANUAL:
        return f"what a person starts has the code {MANUAL}: write `code: {MANUAL}`"
    if source is FaultSource.NVML and code != RECOVERY_ACTION:
        return f"what NVML says has the code {RECOVERY_ACTION}: write `code: {RECOVERY_ACTION}`"
    if source in {FaultSource.EFA, FaultSource.KERNEL}:
        return _of_kernel_log(source, code)
    if source is FaultSource.AWS:
        return _of_aws(code)
    if source is FaultSource.CONDITION and (meant := meant_by(code, condition_types())):
        return f"no condition has the type {code[:63]!r}: did you mean {meant}?"
    return None


def reason_never_said(condition: str, reason: str) -> str | None:
    """Why no condition of a type has a reason; None where one may have it."""
    agent = AGENT_OF.get(condition)
    if agent is None or any(map(str.isdecimal, reason)):  # one that names a code
        return None
    meant = meant_by(reason, [word for word, row in known_reasons().items() if row.group == agent])
    return f"{condition} has no reason {reason!r}: did you mean {meant}?" if meant else None


def meant_by(written: str, known: Collection[str]) -> str | None:
    """The known name that was meant by one with a slip in it; None where it is one, or is like none."""
    if written in known:
        return None
    same = next((each for each in known if _plain(each) == _plain(written)), None)
    # A whole comparison with each name, for each code of a large file, would take long.
    alike = [each for each in known if abs(len(each) - len(written)) <= MOST_SLIPS]
    return same or next(iter(get_close_matches(written, alike, n=1, cutoff=NEAR)), None)


def _plain(name: str) -> str:
    return name.casefold().replace("_", "-")


def _of_kernel_log(source: FaultSource, code: str) -> str | None:
    known = kernel_log_codes().get(code)
    if known is not None and known.fault_source is source:
        return None
    if known is not None:
        return f"{code} is said by another source: write `source: {known.fault_source}`"
    names = sorted(each.code for each in kernel_log_codes().values() if each.fault_source is source)
    close = get_close_matches(code[:63], names, n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    return f"no fault of {source} has the code {code[:63]!r}: {guess}there are {', '.join(names)}"


def _of_aws(code: str) -> str | None:
    if not AWS_CODE.fullmatch(code):
        return f"AWS has no event with the code {code[:63]!r}: write one word, such as instance-retirement"
    if code in CODE_OF_HEALTH:
        return f"{code} arrives under the code of EC2, {CODE_OF_HEALTH[code]}: write that"
    meant = meant_by(code, aws_events())
    return f"AWS has no event with the code {code}: did you mean {meant}?" if meant else None
