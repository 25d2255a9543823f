"""Whether a reported fault is still one: old evidence is checked on the node before anything follows. Pure.

Alertmanager repeats what still fires, a gauge of the last Xid stays until the driver restarts, and a backlog
is delivered when Temporal is back. What a live Node shows of itself is the evidence of now.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.kubernetes.listing import objects_in
from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.activities.model.plan import ExpectedHardware
from gpu_runbooks.activities.nodes.node import observe
from gpu_runbooks.workflows.phases import Outcome
from gpu_runbooks.workflows.validation import judge_node

REMEDIATED = frozenset(
    {Outcome.RETURNED, Outcome.REPLACED, Outcome.RESTARTED, Outcome.VALIDATED, Outcome.CLEARED}
)
"""Ends that say that the node is well. The others that settle a fault are decisions, which stand."""

AGAIN_AFTER = timedelta(hours=6)
"""At most one incident in this time is opened by evidence that an earlier incident dealt with."""

BEYOND_A_LOOK = frozenset({FaultSource.AWS, FaultSource.MANUAL})
"""What these sources say, no Node shows: it does not grow old here."""


@dataclass(frozen=True)
class Dealt:
    """A closed incident that answered this very fault."""

    run_id: str
    outcome: str
    again: datetime | None = None
    """When such evidence opened an incident once more, the last time."""


@dataclass(frozen=True)
class Decision:
    """What follows from the age of a fault."""

    ignored: str = ""
    """Why nothing follows; empty where the fault is to be taken."""
    again: bool = False
    """It is taken although an incident dealt with it: the node shows a fault."""


def wrong_on(
    node: Object, expected: ExpectedHardware, watched: Mapping[str, frozenset[str]]
) -> tuple[str, ...]:
    """What a live Node itself shows wrong: readiness, devices, and watched conditions by bad statuses."""
    checks = judge_node(observe(node, ""), expected)
    conditions = objects_in((node.get("status") or {}).get("conditions"))
    return (
        *(f"{check.name} is {check.seen}, not {check.wanted}" for check in checks if not check.passed),
        *_bad(conditions, watched),
    )


def _bad(conditions: Iterable[Object], watched: Mapping[str, frozenset[str]]) -> Iterable[str]:
    for condition in conditions:
        kind, status = condition.get("type"), condition.get("status")
        if isinstance(kind, str) and kind != "Ready" and status in watched.get(kind, ()):
            yield f"condition {kind} is {status}"


def decide(
    fault: Fault,
    *,
    now: datetime,
    max_age: timedelta | None,
    boot_id: str,
    wrong: Sequence[str],
    dealt: Dealt | None = None,
    unsettled: bool = False,
) -> Decision:
    """Whether a fault that no open incident knows is taken.

    `max_age` None takes any age: what fires now is a word about now, however long ago it began. `boot_id` is
    the node's of now, empty where it is unknown. `wrong` is what the node shows. `unsettled`: an
    incident knew the fault and ended without an answer, such as by an error, so that its age says nothing.
    """
    if fault.boot_id and boot_id and fault.boot_id != boot_id:
        return Decision(
            f"expired: rebooted since: it was seen in boot {fault.boot_id}, the node is in boot {boot_id}"
        )
    if dealt is not None:
        return _decide_again(fault, dealt, now, wrong)
    age = now - fault.first_seen
    believed = max_age is None or age <= max_age or unsettled or fault.source in BEYOND_A_LOOK
    if max_age is not None and not believed and not wrong:
        return Decision(
            f"expired: seen first {_words(age)} ago, at most {_words(max_age)} counts, no incident is about "
            "it, and the node shows no fault now"
        )
    return Decision()


def _decide_again(fault: Fault, dealt: Dealt, now: datetime, wrong: Sequence[str]) -> Decision:
    if dealt.outcome not in REMEDIATED:
        return Decision(f"same episode, already answered: run {dealt.run_id} ended {dealt.outcome}")
    remediated = f"same episode, already remediated: run {dealt.run_id} ended {dealt.outcome}"
    if fault.source is FaultSource.CONDITION:
        # A detector may never take its condition back, and its word is no second evidence of itself: one
        # transition is handled once, and the next has another time.
        return Decision(f"{remediated}, and the condition has not been good since")
    if not wrong:
        return Decision(f"{remediated}, and the node shows no fault now")
    if dealt.again is not None and now - dealt.again < AGAIN_AFTER:
        return Decision(
            f"{remediated}, and this evidence opened one more incident at {dealt.again:%Y-%m-%d %H:%M} UTC "
            f"already; the node shows: {'; '.join(wrong)}. A person has to look"
        )
    return Decision(again=True)


def _words(span: timedelta) -> str:
    minutes = int(span.total_seconds() // 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
