"""Hardware that was repaired, most often first: what the report `gpu-runbooks lemons` lists. Pure.

A machine is all names that its repairs share: one that comes back under a new instance id has the same GPUs.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from gpu_runbooks.activities.history.ledger import RecordedRun
from gpu_runbooks.activities.history.recorded_repairs import is_hardware_name
from gpu_runbooks.activities.model.ledger import PastRepair
from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workers.printable import printable

CONTINUED = "continued_as_new"


@dataclass(frozen=True)
class Lemon:
    """One machine, or one GPU that no repair of its whole machine is known of."""

    instances: tuple[str, ...]
    """Instance ids that it had, the latest first."""
    gpus: tuple[str, ...]
    """UUIDs."""
    serials: tuple[str, ...]
    boards: tuple[str, ...]
    nodes: tuple[str, ...]
    """Names of the Nodes whose incidents repaired it, the latest first."""
    incidents: int
    resets: int
    reboots: int
    replacements: int
    unproven: int
    """Of these repairs, those without proof."""
    resets_of_gpus: dict[str, int]
    """How often each GPU was reset by itself."""
    last: datetime
    last_rung: RungName
    last_incident: str
    outcome: str
    """How the last incident ended, or what it is doing."""

    @property
    def came_back(self) -> bool:
        """It was seen under several instance ids."""
        return len(self.instances) > 1


def lemons(runs: Iterable[RecordedRun], since: datetime) -> list[Lemon]:
    """Hardware with a repair since then, by incidents, then repairs, then the latest."""
    outcomes = _outcomes(runs := list(runs))
    repairs = {
        repair: [name for name in repair.hardware if is_hardware_name(name)]
        for run in runs
        for repair in run.repairs or ()
        if repair.ended >= since and repair.rung is not RungName.RETURN
    }
    found = [
        _lemon(sorted(group, key=lambda each: each.ended, reverse=True), outcomes)
        for group in _groups(repairs)
    ]
    return sorted(
        found,
        key=lambda each: (each.incidents, each.resets + each.reboots + each.replacements, each.last),
        reverse=True,
    )


def _outcomes(runs: Iterable[RecordedRun]) -> dict[tuple[str, str], str]:
    """How each incident ended, by workflow id and first run id: a run that continued as new ended nothing."""
    outcomes: dict[tuple[str, str], str] = {}
    for run in sorted(runs, key=lambda each: (each.status != CONTINUED, each.started)):
        said = run.outcome or (f"open, {run.phase}" if run.closed is None else run.status)
        outcomes |= {(repair.incident, repair.run_id): said for repair in run.repairs or ()}
    return outcomes


def _groups(repairs: dict[PastRepair, list[str]]) -> list[list[PastRepair]]:
    """Repairs that share a name, directly or through others."""
    groups: dict[str, list[PastRepair]] = {}
    for repair, names in repairs.items():
        joined = {id(groups[name]): groups[name] for name in names if name in groups}
        together = [repair, *(each for group in joined.values() for each in group)]
        for each in together:
            groups |= dict.fromkeys(repairs[each], together)
    return list({id(group): group for group in groups.values()}.values())


def _lemon(repairs: list[PastRepair], outcomes: dict[tuple[str, str], str]) -> Lemon:
    names = list(
        dict.fromkeys(name for repair in repairs for name in repair.hardware if is_hardware_name(name))
    )
    done = Counter(repair.rung for repair in repairs)
    last = repairs[0]
    return Lemon(
        instances=tuple(name for name in names if _kind(name) == "instance"),
        gpus=tuple(name for name in names if _kind(name) == "gpu"),
        serials=tuple(name.partition(":")[2] for name in names if _kind(name) == "serial"),
        boards=tuple(name.partition(":")[2] for name in names if _kind(name) == "board"),
        nodes=tuple(dict.fromkeys(printable(repair.incident.rpartition("/")[2]) for repair in repairs)),
        incidents=len({(repair.incident, repair.run_id) for repair in repairs}),
        resets=done[RungName.RESET_GPU],
        reboots=done[RungName.REBOOT],
        replacements=done[RungName.REPLACE],
        unproven=sum(not repair.proven for repair in repairs),
        resets_of_gpus=dict(Counter(gpu for repair in repairs if (gpu := _gpu_alone(repair))).most_common()),
        last=last.ended,
        last_rung=last.rung,
        last_incident=printable(last.incident),
        outcome=printable(outcomes[last.incident, last.run_id]),
    )


def _gpu_alone(repair: PastRepair) -> str | None:
    """The GPU that was reset by itself."""
    if repair.rung is not RungName.RESET_GPU or any(_kind(name) == "instance" for name in repair.hardware):
        return None
    return next((name for name in repair.hardware if _kind(name) == "gpu"), None)


def _kind(name: str) -> str:
    if name.startswith("GPU-"):
        return "gpu"
    kind = name.partition(":")[0]
    return kind if kind in {"serial", "board"} else "instance"
