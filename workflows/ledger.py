"""What the past of the same hardware says about the next repair. Pure.

A repair that was done to this hardware within the window, and the fault is here again, has failed, proven or
not. A reset of one GPU fails only for faults of that GPU; a reboot and a replacement were done to the whole
machine. A GPU that comes back by its serial number in a new instance brings the machine's past with it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from gpu_runbooks.activities.history.recorded_repairs import indexed, is_hardware_name
from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.activities.model.ledger import HardwareHistory, PastRepair, RecallHardware
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.node_task import GpuFacts, HardwareFacts
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.activities.model.repair import RepeatPolicy

NEXT = {
    RungName.RESET_GPU: RungName.REBOOT,
    RungName.REBOOT: RungName.REPLACE,
    RungName.REPLACE: RungName.REPLACE,
}
"""What is left after a repair that failed, mildest first. After a replacement nothing stronger is known."""

MOST_NAMES = 100
"""Of one question to the ledger."""

MOST_SIGNS, LONGEST_SIGN = 12, 60
"""Of one return in the memo, whose size is limited."""

NO_SERIALS = frozenset({"n/a", "[n/a]", "none", "unknown", "not supported", "[not supported]"})
"""What drivers say in place of a serial number: it would make one machine of all."""


@dataclass(frozen=True)
class Suspect:
    """The hardware that an incident is about, by its names."""

    machine: tuple[str, ...]
    """Instance, all its GPUs and their boards: what a reboot or a replacement is done to."""
    faulty: tuple[str, ...]
    """The GPUs that the faults name. For a fault of the node: the instance and its boards."""


class Done(NamedTuple):
    """What earlier incidents did of one repair."""

    times: int
    where: str
    """When and in which incidents, in words."""


def machine_names(identity: NodeIdentity, facts: HardwareFacts | None) -> tuple[str, ...]:
    """Names of a whole machine. Without facts only the instance is known."""
    names = [*_instance(identity)]
    for gpu in facts.gpus if facts else ():
        names += [gpu.uuid or "", *_named("serial", gpu.serial), *_named("board", gpu.board)]
    return tuple(dict.fromkeys(name for name in names if is_hardware_name(name)))


def gpu_names(uuid: str | None, pci_address: str | None, facts: HardwareFacts | None) -> tuple[str, ...]:
    """Names of one GPU, by UUID or else by PCI address. Empty where it cannot be told.

    A serial number that several GPUs of the machine have is that of their board, and names none of them.
    """
    gpus = facts.gpus if facts else ()
    found = next((gpu for gpu in gpus if _is(gpu, uuid, pci_address)), None)
    names = [uuid or (found.uuid if found else None) or ""]
    if found is not None and Counter(gpu.serial for gpu in gpus)[found.serial] == 1:
        names += _named("serial", found.serial)
    return tuple(name for name in names if is_hardware_name(name))


def suspect(
    identity: NodeIdentity,
    facts: HardwareFacts | None,
    faulty: Collection[tuple[str | None, str | None]],
) -> Suspect:
    """Hardware of an incident whose faults name these GPUs, each by UUID and PCI address.

    A fault that names no GPU, or one that is not known, is the node's.
    """
    machine = machine_names(identity, facts)
    whole = tuple(name for name in machine if name in _instance(identity) or name.startswith("board:"))
    names = [gpu_names(uuid, address, facts) or whole for uuid, address in faulty] or [whole]
    return Suspect(
        machine=tuple(dict.fromkeys([*machine, *(name for each in names for name in each)])),
        faulty=tuple(dict.fromkeys(name for each in names for name in each)),
    )


def hardware_of(rung: RungName, hardware: Suspect, reset: Collection[str]) -> tuple[str, ...]:
    """What a repair was done to, for its record. `reset` names the GPU that was reset, nothing for all."""
    return tuple(reset) if rung is RungName.RESET_GPU and reset else hardware.machine


def recall(hardware: Suspect, policy: RepeatPolicy, run_id: str, now: datetime) -> RecallHardware | None:
    """What to ask the ledger; None for a machine without a name."""
    names = indexed([*hardware.faulty, *hardware.machine])[:MOST_NAMES]
    if not names:
        return None
    return RecallHardware(hardware=tuple(names), since=now - policy.window, run_id=run_id)


def floor(
    history: HardwareHistory, hardware: Suspect, policy: RepeatPolicy, now: datetime
) -> RungName | None:
    """The mildest repair that has not failed yet for this hardware; None where none has."""
    failed = {repair.rung for repair in _recent(history.repairs, policy, now) if _was_tried(repair, hardware)}
    return next((after for rung, after in reversed(NEXT.items()) if rung in failed), None)


def floor_reason(history: HardwareHistory, hardware: Suspect, policy: RepeatPolicy, now: datetime) -> str:
    """Why the ladder begins at its floor, in words; empty where there is none."""
    tried = [repair for repair in _recent(history.repairs, policy, now) if _was_tried(repair, hardware)]
    if not tried:
        return ""
    return (
        f"begin with {floor(history, hardware, policy, now)}: the same hardware is at fault again within "
        f"{window_in_words(policy.window)} after {_in_words(tried)}"
    )


def done(
    history: HardwareHistory, hardware: Suspect, rung: RungName, policy: RepeatPolicy, now: datetime
) -> Done:
    """What was done of one repair to this hardware. Resets of all GPUs of a machine count together."""
    repairs = [
        repair
        for repair in _recent(history.repairs, policy, now)
        if repair.rung is rung and _share(repair.hardware, hardware.machine)
    ]
    return Done(len(repairs), _in_words(repairs))


def cap_reached(rung: RungName, before: Done, own: int, policy: RepeatPolicy) -> str:
    """Why a person has to decide before this repair; empty where it may be done.

    `own` are the attempts of the incident that asks.
    """
    cap, times = cap_of(policy, rung), before.times + own
    if cap is None or times < cap:
        return ""
    where = [before.where] if before.where else []
    where += [f"{own} in this incident"] if own else []
    return (
        f"{rung} was done {_times(times)} to the same hardware within {window_in_words(policy.window)}, and "
        f"policy allows {cap}: {', '.join(where)}. Once more only by an operator"
    )


def signs_of(faults: Iterable[Fault]) -> tuple[str, ...]:
    """What tells that a fault is the same as another on the same hardware: its code, or its GPU."""
    signs: dict[str, None] = {}
    for fault in faults:
        if fault.source is not FaultSource.MANUAL:
            gpu = fault.entity.uuid or fault.entity.pci_address
            named = [f"{fault.source} {fault.code}", f"at {gpu}" if gpu else ""]
            signs |= dict.fromkeys(name[:LONGEST_SIGN] for name in named if name)
    return tuple(signs)[:MOST_SIGNS]


def undone(
    history: HardwareHistory,
    hardware: Suspect,
    signs: Collection[str],
    policy: RepeatPolicy,
    now: datetime,
) -> Done:
    """Returns of this hardware to service whose fault is here again."""
    returns = [
        each
        for each in _recent(history.repairs, policy, now)
        if each.rung is RungName.RETURN
        and _share(each.hardware, hardware.machine)
        and _share(each.signs, signs)
    ]
    return Done(len(returns), _in_words(returns))


def loop_reached(before: Done, own: int, policy: RepeatPolicy) -> str:
    """Why a person has to look before anything is done; empty where the hardware may be tried once more."""
    times = before.times + own
    if times < policy.returns:
        return ""
    where = [before.where] if before.where else []
    where += [f"{own} in this incident"] if own else []
    return (
        f"the same fault came back after each of {times} returns to service within "
        f"{window_in_words(policy.window)}, and policy asks from {policy.returns} on: {', '.join(where)}. "
        "Take the machine out, or say retry or escalate_to to go on"
    )


def cap_of(policy: RepeatPolicy, rung: RungName) -> int | None:
    """How often a repair may be done to the same hardware within the window; None for other rungs."""
    caps = {
        RungName.RESET_GPU: policy.resets,
        RungName.REBOOT: policy.reboots,
        RungName.REPLACE: policy.replacements,
    }
    return caps.get(rung)


def unknown_past(history: HardwareHistory, policy: RepeatPolicy, now: datetime) -> str:
    """What the ledger cannot know of the window, in words; empty where it knows all of it."""
    since = history.complete_since
    if since is None or since <= now - policy.window:
        return ""
    return (
        f"repairs before {since:%Y-%m-%d %H:%M} UTC are not known, and policy looks back "
        f"{window_in_words(policy.window)}: the Temporal namespace does not keep closed incidents that long, "
        "or there are more of them than are read"
    )


def window_in_words(window: timedelta) -> str:
    """`7 days`, `36 hours`, `30 minutes`."""
    for unit, length in (("days", timedelta(days=1)), ("hours", timedelta(hours=1))):
        if window >= 2 * length and not window % length:
            return f"{window // length} {unit}"
    return f"{window // timedelta(minutes=1)} minutes"


def _recent(repairs: Sequence[PastRepair], policy: RepeatPolicy, now: datetime) -> Iterator[PastRepair]:
    """Repairs within the window, each once, newest first."""
    for repair in sorted(dict.fromkeys(repairs), key=lambda each: each.ended, reverse=True):
        if repair.ended >= now - policy.window:
            yield repair


def _was_tried(repair: PastRepair, hardware: Suspect) -> bool:
    # A reset of one GPU carries the names of that GPU only, one of all GPUs those of the machine too.
    at = hardware.faulty if repair.rung is RungName.RESET_GPU else hardware.machine
    return repair.rung in NEXT and _share(repair.hardware, at)


def _share(one: Collection[str], other: Collection[str]) -> bool:
    return not {*one}.isdisjoint(other)


def _is(gpu: GpuFacts, uuid: str | None, pci_address: str | None) -> bool:
    if uuid is not None:
        return gpu.uuid == uuid
    return pci_address is not None and gpu.pci_address == pci_address


def _instance(identity: NodeIdentity) -> tuple[str]:
    return (identity.instance_id or identity.provider_id,)


def _named(kind: str, number: str | None) -> tuple[str, ...]:
    text = (number or "").strip()
    return (f"{kind}:{text}",) if text.strip("0") and text.lower() not in NO_SERIALS else ()


def _in_words(repairs: Sequence[PastRepair]) -> str:
    """At most five, newest first."""
    lines = [
        f"{repair.rung} at {repair.ended:%Y-%m-%d %H:%M} UTC in {repair.incident} (run {repair.run_id})"
        for repair in repairs[:5]
    ]
    more = f", and {len(repairs) - 5} more" if len(repairs) > 5 else ""
    return ", ".join(lines) + more


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
