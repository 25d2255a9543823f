"""A fault in one word, as a person types it: `xid:79`, `condition:Ready=False/KubeletNotReady`.

    SOURCE:CODE[/GRADE]                 xid:79   sxid:20034/fatal   dcgm:80   alert:GpuFellOff
    condition:TYPE[=STATUS[/REASON]]    condition:AcceleratedHardwareReady=False/NvidiaXID79Error
    recovery:ACTION                     recovery:2, the action that the driver asks for

Refused is whatever no source could have said. Nothing of it is a path, an option or a template to us.
"""

import re
from collections.abc import Mapping
from datetime import datetime

from gpu_runbooks.activities.model.fault import Entity, Fault, FaultSource
from gpu_runbooks.workers.intake.alert_faults import CODE_LABELS, NO_VALUE, WITHOUT_VALUE
from gpu_runbooks.workers.intake.alertmanager import is_node_name
from gpu_runbooks.workflows.policy.catalogue import UnreadableXidError
from gpu_runbooks.workflows.policy.condition_reasons import RECOVERY_ACTION
from gpu_runbooks.workflows.policy.faults import canonical_code

LONGEST = 1200
"""Characters of a notation: a condition's reason alone may have 1,024."""

CODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 _.:-]{0,126}[A-Za-z0-9])?", re.ASCII)
CONDITION = re.compile(r"(?:[a-z0-9][a-z0-9.-]{0,120}/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,62})", re.ASCII)
REASON = re.compile(
    r"[A-Za-z][A-Za-z0-9_,;|:. -]{0,1023}|\{(?:\"[0-9]{1,6}\":(?:true|false)(?:,(?=\"))?){1,16}\}", re.ASCII
)
"""One word or several, as agents write them; GKE's plugin writes JSON, `{"31":true}`."""

NUMBER = re.compile(r"[0-9]{1,6}", re.ASCII)
STATUSES = ("True", "False", "Unknown")
GRADES = ("fatal", "nonfatal")
NUMBERED = frozenset(source for _, source in CODE_LABELS)
GRADED = (FaultSource.XID, FaultSource.SXID)

PART = {
    FaultSource.XID: Entity(kind="gpu"),
    FaultSource.DCGM: Entity(kind="gpu"),
    FaultSource.NVML: Entity(kind="gpu"),
    FaultSource.SXID: Entity(kind="nvswitch"),
    FaultSource.EFA: Entity(kind="nic"),
}
"""What the faults of a source are about, where it is not the node."""

RECOVERY = "recovery"
EXAMPLES = (
    "xid:79, sxid:20034/fatal, condition:AcceleratedHardwareReady=False/NvidiaXID79Error, dcgm:80, "
    "alert:GpuFellOff, aws:instance-retirement, recovery:2, manual"
)


class NotationError(ValueError):
    """It names no fault, or no node. The message says what to write."""


def read_node_name(text: str) -> str:
    """Name of a Node. Raises `NotationError`: what is no name gets near no API path."""
    if not is_node_name(text):
        raise NotationError(
            f"no Node can be named {_quoted(text)}: write its name as `kubectl get nodes` shows it, small "
            "letters, digits, '-' and '.'"
        )
    return text


def read_fault(text: str, now: datetime, said: Mapping[str, str | int] | None = None) -> Fault:
    """The fault that a notation names, seen now.

    `said` has fields of the fault that were given beside it: status, reason, place, before, recovery_action.
    Raises `NotationError`.
    """
    if len(text) > LONGEST or not text.isprintable():
        raise NotationError(f"no fault is written {_quoted(text)}: write one line such as {EXAMPLES}")
    kind, colon, rest = text.partition(":")
    if kind == RECOVERY:
        fields = _recovery(rest)
    elif kind not in {*FaultSource} or (not colon and kind != FaultSource.MANUAL):
        raise NotationError(f"no fault is written {_quoted(text)}: write its source and code, {EXAMPLES}")
    elif kind == FaultSource.CONDITION:
        fields = _condition(rest)
    elif kind == FaultSource.MANUAL:
        fields = _coded(FaultSource.MANUAL, rest or kind)
    else:
        fields = _coded(FaultSource(kind), rest)
    for name, value in (said or {}).items():
        if fields.get(name):
            raise NotationError(
                f"{name} is in the fault already: write it once, there or as --{name.replace('_', '-')}"
            )
        fields[name] = value
    _check(fields)
    return Fault.model_validate(
        {
            **fields,
            "entity": PART.get(FaultSource(str(fields["source"])), Entity()),
            "first_seen": now,
            "last_seen": now,
            "fingerprint": "explained",
            "reporter": "policy explain",
        }
    )


def in_notation(fault: Fault) -> str:
    """A fault in this notation, for people to read; its text may be anybody's."""
    if fault.recovery_action is not None and fault.code == RECOVERY_ACTION:
        return f"{RECOVERY}:{fault.recovery_action}"
    if fault.source is FaultSource.CONDITION:
        status = f"={fault.status}" if fault.status or fault.reason else ""
        return f"{fault.source}:{fault.code}{status}" + (f"/{fault.reason}" if fault.reason else "")
    if fault.source is FaultSource.MANUAL and fault.code == FaultSource.MANUAL:
        return str(fault.source)
    return f"{fault.source}:{fault.code}" + (f"/{fault.grade}" if fault.grade else "")


def _recovery(action: str) -> dict[str, str | int]:
    if not NUMBER.fullmatch(action):
        raise NotationError(
            f"recovery:{_quoted(action)} is no action: write NVML's number, such as recovery:2"
        )
    return {"source": FaultSource.NVML, "code": RECOVERY_ACTION, "recovery_action": int(action)}


def _condition(rest: str) -> dict[str, str | int]:
    kind, equals, answer = rest.partition("=")
    status, slash, reason = answer.partition("/")
    if not CONDITION.fullmatch(kind) or (equals and status not in STATUSES) or (slash and not reason):
        raise NotationError(
            f"no condition is written {_quoted(rest)}: write its type, and where it matters its status "
            f"(one of {', '.join(STATUSES)}) and reason, such as condition:Ready=False/KubeletNotReady"
        )
    return {"source": FaultSource.CONDITION, "code": kind, "status": status, "reason": reason}


def _coded(source: FaultSource, rest: str) -> dict[str, str | int]:
    code, slash, grade = rest.partition("/")
    code = code.strip()  # as an exporter may write it
    if not code:
        raise NotationError(f"{source}: names no code: write it behind the colon, as in {EXAMPLES}")
    if source in NUMBERED and NO_VALUE.fullmatch(rest):
        raise NotationError(f"{source} {_quoted(rest)} {WITHOUT_VALUE}, and write its number, as in xid:79")
    if slash and (source not in GRADED or grade not in GRADES):
        raise NotationError(
            f"{_quoted(rest)} is no code of {source}: only xid and sxid have a grade, /fatal or /nonfatal"
        )
    if not CODE.fullmatch(code):
        raise NotationError(
            f"{_quoted(code)} is no code of {source}: write letters, digits, ' ', '_', '.', ':' and '-', at "
            f"most 128, such as in {EXAMPLES}"
        )
    try:
        code = canonical_code(source, code)
    except UnreadableXidError as error:
        raise NotationError(str(error)) from None
    return {"source": source, "code": code, "grade": grade}


def _check(fields: Mapping[str, str | int]) -> None:
    """Raise `NotationError` for an answer of a condition that none can have, or a place that is none."""
    status, reason, place = (str(fields.get(name) or "") for name in ("status", "reason", "place"))
    if (status or reason) and fields["source"] is not FaultSource.CONDITION:
        raise NotationError(f"only a condition has a status and a reason, not {fields['source']}")
    if status and status not in STATUSES:
        raise NotationError(f"no condition has status {_quoted(status)}: write {', '.join(STATUSES)}")
    if reason and not REASON.fullmatch(reason):
        raise NotationError(
            f"no condition has reason {_quoted(reason)}: write one word, such as KubeletNotReady"
        )
    if place and not CODE.fullmatch(place):
        raise NotationError(
            f"{_quoted(place)} is no place on a GPU: write it as the driver does, GPC 2 TPC 1"
        )


def _quoted(text: str) -> str:
    """Shortened, and with all that would steer a terminal as its number."""
    return ascii(text[:60] + ("..." if len(text) > 60 else ""))
