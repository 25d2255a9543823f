"""One node as it truly is, what activities do to it, and what was seen of it: the side that nobody scripts.

Each activity has one way in which all goes well, others that are nobody's fault, such as a repair that does
not cure, and troubles, of which one story has only so many.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from incident.plans import plan
from model.running import Activity, Answer

from gpu_runbooks.activities import errors

BAD = "True"
GOOD = "False"
CONDITION = "KernelDeadlock"

RANK = {"reset_gpu": 1, "reboot": 2, "replace": 3}
"""The repairs, mildest first."""

LADDERS = {"reset": 1, "reboot": 2, "replace": 3}
"""Ladders by the rank of their first repair; others owe none."""


class Node(NamedTuple):
    """A node of the pool. The second half is what a witness writes down, who sees all and decides nothing."""

    name: str
    machine: int = 1
    registered: int = 1
    boot: int = 1
    present: bool = True
    blocked: bool = False
    """By this incident."""
    sick: bool = True
    """What a validation would find."""
    flaps: bool = False
    """A condition is bad that policy tolerates for a while."""

    seen: tuple[int, int, int, bool] | None = None
    """Machine, registration, boot and block by the last look, as long as nothing that takes time followed."""
    emptied: str = ""
    """`gpu` or `node`: what a drain has emptied since the last repair."""
    measured: bool = False
    valid: bool = False
    """Measured and loaded without a fault since the last repair and the last fault."""
    owed: int = 0
    """The repair that the faults call for which no repair was done for since, by `RANK`."""
    proofs: frozenset[str] = frozenset()
    """Rungs that took effect since the last act on record."""
    vouched: bool = False
    """A person said that the node goes back as it is."""
    disrupted: bool = False
    """An act of ours cost the node its work, and it is not back yet."""
    stopped: bool = False
    """The incident was told of a halt or a storm."""

    def identity(self) -> dict[str, str]:
        machine = self.name if self.machine == 1 else f"{self.name}-{self.machine}"
        return {
            "name": self.name,
            "uid": f"uid-{machine}-{self.registered}",
            "provider_id": f"aws:///us-east-1a/i-{machine}",
            "instance_id": f"i-{machine}",
            "zone": "us-east-1a",
            "instance_type": "p5.48xlarge",
            "boot_id": f"boot-{machine}-{self.boot}",
        }

    def is_named(self, identity: dict[str, str]) -> bool:
        """Whether this is the machine and the Node of an identity."""
        own = self.identity()
        return self.present and all(own[key] == identity[key] for key in ("uid", "provider_id"))

    def rebooted(self) -> "Node":
        return self._replace(boot=self.boot + 1, measured=False, valid=False, seen=None)

    def cured(self) -> "Node":
        return self._replace(sick=False, flaps=False)


@dataclass(frozen=True)
class Choice:
    """One way in which an activity may go."""

    words: str
    answer: Answer
    node: Node
    trouble: int = 0
    asks_budget: str = ""
    """The request that a start of the budget hands to it."""


class UnansweredError(Exception):
    """The model knows nothing of an activity."""


def choices(activity: Activity, node: Node, *, cut_short: bool, unsent: bool) -> Iterator[Choice]:
    """All ways in which an activity may go, the best one first."""
    if unsent:
        yield _choice(activity, "is never begun", Failed("cancelled"), node, 0)
        return
    request = json.loads(activity.request)
    answers = ANSWERS.get(activity.name)
    if answers is None:
        raise UnansweredError(f"tests/model/world.py does not say what activity {activity.name} answers")
    for words, result, after, trouble in answers(request, node):
        yield _choice(activity, words, result, after, trouble)
    if cut_short:
        yield _choice(activity, "is cut short", Failed("cancelled"), node, 0)


def _choice(activity: Activity, words: str, result: Any, after: Node, trouble: int) -> Choice:
    took = timedelta(0)
    if isinstance(result, Late):
        took, result = result.took, result.result
    asks = activity.request if activity.name == "ensure_budget" and not isinstance(result, Failed) else ""
    if isinstance(result, Failed):
        answer = Answer(activity.seq, failure=result.kind, took=took)
    else:
        answer = Answer(activity.seq, result=json.dumps(result), took=took)
    return Choice(f"{activity.name} {words}", answer, after, trouble, asks)


class Failed(NamedTuple):
    kind: str


class Late(NamedTuple):
    result: Any
    took: timedelta


Way = tuple[str, Any, Node, int]


NO_ANSWER = Failed(errors.UNAVAILABLE)


def observe_node(request: dict[str, Any], node: Node) -> Iterable[Way]:
    seen = node._replace(
        seen=(node.machine, node.registered, node.boot, node.blocked) if node.present else (0, 0, 0, False),
        emptied=node.emptied if node.blocked else "",  # any pod may have come
    )
    words = "shows the node" if node.present else "finds no node"
    shown = {
        "identity": node.identity() if node.present else None,
        "ready": "True",
        "blocked": node.present and node.blocked,
        "gpus": 8,
        "efa_interfaces": 32,
        "conditions": dict.fromkeys(request["conditions"], BAD if node.flaps else GOOD),
    }
    yield words, shown, seen, 0
    yield "has no answer", NO_ANSWER, node, 1


def block_node(request: dict[str, Any], node: Node) -> Iterable[Way]:
    if not node.is_named(request["identity"]):
        yield "finds another machine", Failed(errors.NODE_CHANGED), node, 0
        return
    if request["only_adopt"] and not node.blocked:
        yield "finds no block of ours", Failed(errors.NOT_BLOCKED), node, 0
        return
    marker = {
        "incident": request["incident"],
        "run_id": request["run_id"],
        "reasons": [request["reason"]],
        "since": request["since"],
        "was_unschedulable": False,
    }
    blocked = node._replace(blocked=True, proofs=node.proofs | {"block"})
    yield "blocks the node", {"marker": marker, "adopted": node.blocked}, blocked, 0
    if not node.blocked:
        yield "finds the block of another incident", Failed(errors.BLOCKED_BY_OTHER), node, 1
    yield "blocks the node, and its answer is lost", Failed("timeout"), node._replace(blocked=True), 1


def unblock_node(request: dict[str, Any], node: Node) -> Iterable[Way]:
    if not node.is_named(request["identity"]):
        yield "finds no such node", {"removed": [], "kept": [], "node_gone": True}, node, 0
        return
    free = node._replace(blocked=False, disrupted=False, emptied="", proofs=node.proofs | {"return"})
    yield "removes the block", {"removed": ["taint"], "kept": []}, free, 0
    yield "removes the block, and its answer is lost", Failed("timeout"), free, 1
    yield "has no answer", NO_ANSWER, node, 1


def drain_pods(request: dict[str, Any], node: Node) -> Iterable[Way]:
    if not node.is_named(request["identity"]) or not (node.blocked or request["restart"]):
        yield "finds another node than it was asked for", Failed(errors.NODE_CHANGED), node, 0
        return
    if request["restart"]:
        yield (
            "ends the pods",
            {"outcome": "drained"},
            node._replace(proofs=node.proofs | {"restart_workload"}),
            0,
        )
    else:
        scope = "node" if request["only"] is None else "gpu"
        empty = node._replace(
            emptied="node" if "node" in (scope, node.emptied) else scope,
            proofs=node.proofs | {"drain"},
            seen=None,
        )
        yield f"empties the {scope}", {"outcome": "drained"}, empty, 0
    stuck = node._replace(seen=None)
    yield "is blocked by a pod", Late({"outcome": "blocked"}, timedelta(minutes=30)), stuck, 0
    yield "has no answer", Failed("timeout"), stuck, 1


def _facts(node: Node, *, alone: bool = True, fine: bool = False) -> dict[str, Any]:
    gpu = {
        "index": 0,
        "uuid": "GPU-1",
        "podUids": ["uid-hung"],
        "hostProcesses": 0,
        "allocatedPodUids": ["uid-hung"],
        "resetAlone": alone,
        "migEnabled": False,
        "recoveryAction": 0 if fine else 2,
        "eccUncorrected": 0,
        "remapPending": False,
        "remapFailed": False,
        "nvlinks": 18,
        "nvlinksActive": 18,
    }
    return {"gpus": [gpu] * 8, "efaInterfaces": 32, "bootId": node.identity()["boot_id"]}


EVIDENCE = {"digest": "sha256:abc", "location": "file:///evidence", "size": 10}


def examine_node(request: dict[str, Any], node: Node) -> Iterable[Way]:
    after = node._replace(seen=None)
    if not node.is_named(request["identity"]):
        yield "finds another machine", Failed(errors.NODE_CHANGED), after, 0
        return
    yield "keeps the evidence", {"facts": _facts(node), "evidence": EVIDENCE}, after, 0
    yield (
        "sees that the GPU needs its peers",
        {"facts": _facts(node, alone=False), "evidence": EVIDENCE},
        after,
        1,
    )
    yield "finds the agent silent", {"agent_silent": True, "evidence": EVIDENCE}, after, 1
    yield "has no answer", Failed("timeout"), after, 1


def run_node_task(request: dict[str, Any], node: Node) -> Iterable[Way]:
    there = node.is_named(request["identity"])
    if request["kind"] == "ResetGPU":
        yield from _reset(node, there=there)
    elif not there:
        yield "finds no agent", {"task": "t", "outcome": "not_started"}, node, 0
    else:
        fine = not node.sick
        facts = _facts(node, fine=fine)
        measured = node._replace(measured=fine, valid=False)  # the agent there has just answered
        words = "measures healthy hardware" if fine else "measures a fault"
        yield words, {"task": "t", "outcome": "succeeded", "facts": facts}, measured, 0
        silent = node._replace(measured=False, valid=False, seen=None)
        yield "measures nothing in time", {"task": "t", "outcome": "timed_out"}, silent, 1
        yield "says nothing of the GPUs", {"task": "t", "outcome": "succeeded"}, silent, 1


def _reset(node: Node, *, there: bool) -> Iterable[Way]:
    node = node._replace(measured=False, valid=False, seen=None)
    if not there:
        yield "finds no agent", {"task": "t", "outcome": "not_started"}, node, 0
        return
    done = node._replace(proofs=node.proofs | {"reset_gpu"})
    said = {"task": "t", "outcome": "succeeded", "reset": "done"}
    yield "resets the GPU", said, done.cured(), 0
    yield "resets the GPU, which is as bad as before", said, done, 0
    yield "fails to reset the GPU", {"task": "t", "outcome": "failed", "reset": "unknown"}, node, 0
    peers = {"task": "t", "outcome": "failed", "reset": "needs-peers"}
    yield "finds that the GPU needs its peers", peers, node, 1
    yield "resets the GPU, and its answer is lost", Failed("timeout"), node.cured(), 1


def run_test_pod(request: dict[str, Any], node: Node) -> Iterable[Way]:
    node = node._replace(seen=None)
    if not node.is_named(request["identity"]) or node.sick:
        yield "fails", {"outcome": "failed", "pod": "t", "message": "wrong result"}, node, 0
        return
    valid = node._replace(valid=node.measured, proofs=node.proofs | {"validate"})
    yield "passes", {"outcome": "succeeded", "pod": "t", "gpus": 8}, valid, 0
    yield "is not scheduled", {"outcome": "timed_out", "pod": "t", "message": "not scheduled"}, node, 1
    yield "has no answer", Failed("timeout"), node, 1


def reboot_instance(request: dict[str, Any], node: Node) -> Iterable[Way]:
    said = {"instance_id": node.identity()["instance_id"], "requested_at": "2026-01-05T12:00:00Z"}
    if not node.is_named(request["identity"]):
        yield "finds no such instance", Failed(errors.INSTANCE_UNKNOWN), node, 0
        return
    booted = node.rebooted()
    yield "reboots the machine", said, booted.cured(), 0
    yield "reboots the machine, which is as bad as before", said, booted, 0
    yield "is accepted, and nothing happens", said, node._replace(seen=None), 0
    yield "reboots the machine, and its answer is lost", Failed("timeout"), booted.cured(), 1
    yield "is not sent", Failed(errors.NOT_SENT), node, 1


def await_reboot(request: dict[str, Any], node: Node) -> Iterable[Way]:
    boot = node.identity()["boot_id"]
    after = node._replace(seen=None)
    if node.present and boot != request["identity"]["boot_id"]:
        proven = after._replace(proofs=after.proofs | {"reboot"})
        yield "sees another boot id", {"proven": True, "boot_id": boot}, proven, 0
    else:
        late = Late({"proven": False, "message": "same boot id"}, timedelta(minutes=20))
        yield "sees no other boot id", late, after, 0
    away = after._replace(present=False, blocked=False, emptied="")
    yield "sees the machine go away", {"proven": False, "gone": True}, away, 1
    yield "has no answer", Failed("timeout"), after, 1


def replace_instance(request: dict[str, Any], node: Node) -> Iterable[Way]:
    said = {
        "instance_id": request["identity"]["instance_id"],
        "group": "asg",
        "desired_capacity": 8,
        "state": "shutting-down",
        "requested_at": "2026-01-05T12:00:00Z",
    }
    if node.identity()["provider_id"] != request["identity"]["provider_id"]:
        yield "finds it going already", said, node, 0
        return
    other = Node(
        name=node.name,
        machine=node.machine + 1,
        sick=False,
        owed=node.owed,
        proofs=node.proofs,
        vouched=node.vouched,
        disrupted=True,
        stopped=node.stopped,
    )
    yield "terminates the machine, and another comes", said, other, 0
    yield "is refused: nobody owns the machine", Failed(errors.NO_OWNER), node, 1
    yield "terminates the machine, and its answer is lost", Failed("timeout"), other, 1
    yield "is not sent", Failed(errors.NOT_SENT), node, 1


def await_successor(request: dict[str, Any], node: Node) -> Iterable[Way]:
    yield "sees the successor launched", {"coming": True}, node, 0
    yield "sees that there is no capacity", {"coming": False, "capacity_lost": True}, node, 1


def claim_replacement(request: dict[str, Any], node: Node) -> Iterable[Way]:
    if node.identity()["provider_id"] != request["replaced"]["provider_id"] and node.present:
        claimed = node._replace(blocked=True, emptied="", seen=None)
        yield "blocks the successor", {"proven": True, "identity": node.identity()}, claimed, 0
    late = Late({"proven": False, "message": "no new node"}, timedelta(minutes=60))
    yield "sees no successor", late, node._replace(seen=None), 1


def confirm_replacement(request: dict[str, Any], node: Node) -> Iterable[Way]:
    proven = node._replace(proofs=node.proofs | {"replace"}, seen=None)
    yield "confirms it", {"confirmed": True}, proven, 0
    late = Late({"confirmed": False, "message": "it runs"}, timedelta(minutes=60))
    yield "does not confirm it", late, node._replace(seen=None), 1


def inspect_instance(request: dict[str, Any], node: Node) -> Iterable[Way]:
    yield "shows it running", {"state": "running"}, node, 0
    yield "shows that it is to be retired", {"state": "running", "retiring": "retirement"}, node, 1


def pause_gpu_services(request: dict[str, Any], node: Node) -> Iterable[Way]:
    yield "pauses them", {"outcome": "paused"}, node, 0
    yield "finds a driver upgrade under way", {"outcome": "deferred", "message": "upgrade"}, node, 1


def resume_gpu_services(request: dict[str, Any], node: Node) -> Iterable[Way]:
    yield "resumes them", {"restored": []}, node, 0


def plan_incident(request: dict[str, Any], node: Node) -> Iterable[Way]:
    policy = plan_of(LADDER_OF[request["fault"]["code"]], node)
    yield "says what policy wants", policy, node, 0
    yield "has no answer", NO_ANSWER, node, 1


LADDER_OF = {"95": "reset", "119": "reboot", "79": "replace", "13": "restart", CONDITION: "reboot"}
"""What policy prescribes, by the code of a fault."""


PATIENCE = {"operator_reminder": timedelta(hours=1), "operator_deadline": timedelta(hours=2)}


def plan_of(ladder: str, node: Node) -> dict[str, Any]:
    """The plan that policy makes for a node."""
    pinned = plan(ladder).identity.model_copy(update=node.identity())
    made: dict[str, Any] = plan(ladder, identity=pinned, **PATIENCE).model_dump(mode="json")
    return made


def _nothing(words: str, result: Any = None) -> Any:
    def answers(request: dict[str, Any], node: Node) -> Iterable[Way]:
        yield words, result, node, 0

    return answers


ANSWERS = {
    "observe_node": observe_node,
    "block_node": block_node,
    "unblock_node": unblock_node,
    "drain_pods": drain_pods,
    "examine_node": examine_node,
    "run_node_task": run_node_task,
    "run_test_pod": run_test_pod,
    "reboot_instance": reboot_instance,
    "await_reboot": await_reboot,
    "replace_instance": replace_instance,
    "await_successor": await_successor,
    "claim_replacement": claim_replacement,
    "confirm_replacement": confirm_replacement,
    "inspect_instance": inspect_instance,
    "pause_gpu_services": pause_gpu_services,
    "resume_gpu_services": resume_gpu_services,
    "plan_incident": plan_incident,
    "delete_node_task": _nothing("removes the task"),
    "remove_node": _nothing("removes the old Node"),
    "recall_hardware": _nothing("knows of no repair before", {"repairs": []}),
    "ensure_budget": _nothing("starts the budget"),
    "ensure_guard": _nothing("starts the guard"),
    "page": _nothing("calls a person", {"reached": ["event"]}),
    "find_speakers": _nothing("finds nobody", {"identities": {}}),
}
"""By activity: its ways, each with its words, result, the node after it, and whether it is a trouble."""
