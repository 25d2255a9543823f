"""How pods leave a node: the section `drain` of the policy file, and what of it counts for one fault."""

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema, field_validator, model_validator

from gpu_runbooks.activities.model.drain import (
    PROTECTING,
    TEMPORAL,
    DrainMethod,
    DrainPolicy,
    PodRule,
    PodSelector,
    Workload,
    WorkloadSelector,
)
from gpu_runbooks.workflows.policy.fields import (
    Duration,
    Key,
    Kind,
    LabelValue,
    Name,
    Namespaces,
    Text,
    Written,
    wire_size,
)

MOST_ENTRIES = 30
"""Of a list in this section: all of it travels with every report of a fault."""

LARGEST = 8 * 1024
"""Bytes of the section on the wire: a payload holds 16 KiB, and a plan and an incident hold more than it."""

LONGEST_DEADLINE = timedelta(days=14)
"""Longest wait for a pod. A training job that is left alone for longer is no drain."""

WAITING = frozenset({DrainMethod.WAIT_FOR_COMPLETION, DrainMethod.CHECKPOINT_THEN_EVICT})


def _method(value: Any) -> Any:
    if value == "delete":
        raise ValueError(
            "policy never deletes a pod against its budgets: an operator does, for one pod, by the update "
            f"override_drain of its incident; write {', '.join(DrainMethod)}"
        )
    return value


def _values(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


Method = Annotated[DrainMethod, BeforeValidator(_method)]
ProtectingValues = Annotated[
    tuple[Text, ...],
    BeforeValidator(_values),
    Field(min_length=1, max_length=10),
    WithJsonSchema(
        {
            "type": ["string", "boolean", "array"],
            "items": {"type": ["string", "boolean"]},
            "minItems": 1,
            "maxItems": 10,
        }
    ),
]
SomeNamespaces = Annotated[tuple[Namespaces, ...], Field(min_length=1, max_length=MOST_ENTRIES)]


class Checkpoint(Written):
    """Where a pod is asked over HTTP to checkpoint."""

    port: Annotated[int, Field(ge=1, le=65535, strict=True)]
    """Port of the pod, such as 8080."""
    path: Annotated[str, Field(max_length=200)] = "/checkpoint"
    """Path of the URL."""

    @field_validator("path")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value.startswith("/") or not value.isascii() or not value.isprintable() or {*value} & {*" #"}:
            raise ValueError(
                f"write a path that begins with / and has no spaces, such as /checkpoint; not {value!r}"
            )
        return value


class DrainRule(Written):
    """How the pods that it fits leave a node."""

    name: Name
    """Name of the rule, which the audit shows."""
    workloads: Annotated[tuple[Workload, ...], Field(min_length=1)] = tuple(Workload)
    """Only these workloads: training, inference, infrastructure or other."""
    namespaces: SomeNamespaces = ("*",)
    """Only in these namespaces; shell patterns such as team-*."""
    faults: Annotated[tuple[str, ...], Field(min_length=1, max_length=MOST_ENTRIES)] | None = None
    """Names of rules for faults, the site's or built-in; all where it is left out."""
    method: Method
    """How the pods leave: evict, wait_for_completion or checkpoint_then_evict."""
    deadline: Annotated[Duration | None, Field(validate_default=True)] = None
    """Longest wait for completion or checkpoint, from the start of the drain."""
    checkpoint: Checkpoint | None = None
    """Where the pod is asked over HTTP, such as {port: 8080}; by annotation where it is left out."""

    @field_validator("deadline")
    @classmethod
    def _waits(cls, value: timedelta | None, info: ValidationInfo) -> timedelta | None:
        method = info.data.get("method")
        if method in WAITING and value is None:
            raise ValueError(f"{method} needs a deadline, such as 20m: after it the pod is evicted")
        if method is DrainMethod.EVICT and value is not None:
            raise ValueError("evict does not wait: drop the deadline, or write a method that waits")
        if value is not None and not timedelta(0) < value <= LONGEST_DEADLINE:
            raise ValueError(f"write a deadline of at least 1s and at most {LONGEST_DEADLINE.days}d")
        return value

    @field_validator("checkpoint")
    @classmethod
    def _asked(cls, value: Checkpoint | None, info: ValidationInfo) -> Checkpoint | None:
        method = info.data.get("method")
        if value is not None and method in set(DrainMethod) - {DrainMethod.CHECKPOINT_THEN_EVICT}:
            raise ValueError(f"{method} asks for no checkpoint: drop it, or write checkpoint_then_evict")
        return value

    def counts_for(self, fault_rule: str) -> bool:
        """Whether it is for faults of this rule."""
        return self.faults is None or fault_rule in self.faults

    def wire(self) -> PodRule:
        checkpoint = (
            {}
            if self.checkpoint is None
            else {
                "checkpoint_port": self.checkpoint.port,
                "checkpoint_path": self.checkpoint.path,
            }
        )
        return PodRule.model_validate(
            {
                "name": self.name,
                "namespaces": () if "*" in self.namespaces else self.namespaces,
                "workloads": () if {*self.workloads} == {*Workload} else self.workloads,
                "method": self.method,
                "deadline": self.deadline or timedelta(0),
                **checkpoint,
            }
        )


class Pods(Written):
    """Some pods: in one of the namespaces, with all the labels, of one of the owner kinds."""

    namespaces: SomeNamespaces | None = None
    """In one of these namespaces; shell patterns such as team-*."""
    labels: Annotated[dict[Key, LabelValue], Field(min_length=1, max_length=MOST_ENTRIES)] | None = None
    """With all of these labels."""
    owners: Annotated[tuple[Kind, ...], Field(min_length=1, max_length=MOST_ENTRIES)] | None = None
    """Of a controller of one of these kinds, such as PyTorchJob."""

    @model_validator(mode="after")
    def _selects(self) -> "Pods":
        if self.namespaces is None and self.labels is None and self.owners is None:
            raise ValueError("it selects no pod: write namespaces, labels or owners")
        return self

    def wire(self) -> PodSelector:
        return PodSelector(
            namespaces=self.namespaces or (), labels=self.labels or {}, owners=self.owners or ()
        )


class WorkloadPods(Pods):
    """Pods that are of a workload."""

    workload: Workload
    """What they are: training, inference, infrastructure or other."""

    def wire(self) -> WorkloadSelector:
        return WorkloadSelector(workload=self.workload, **dict(super().wire()))


class Drain(Written):
    """The section `drain`."""

    rules: Annotated[tuple[DrainRule, ...], Field(max_length=MOST_ENTRIES)] = ()
    """The first that fits a pod decides how it leaves; none means evict."""
    workloads: Annotated[tuple[WorkloadPods, ...], Field(max_length=MOST_ENTRIES)] = ()
    """Told apart before the built-in ways."""
    protecting: Annotated[dict[Key, ProtectingValues], Field(max_length=MOST_ENTRIES)] = PROTECTING
    """Annotations by which an owner forbids eviction, in place of the built-in ones."""
    essential: Annotated[tuple[Pods, ...], Field(max_length=MOST_ENTRIES)] = ()
    """Pods that no drain may evict, in addition to Temporal's own."""
    bare_pods: Literal["report", "block"] = "report"
    """Pods that nobody makes anew: `report` evicts and lists them, `block` leaves them to a person."""
    empty_dir: Literal["report", "block"] = "report"
    """Pods whose emptyDir volumes end with them: `report` or `block`."""
    finalizers: Literal["wait", "accept_when_stopped"] = "wait"
    """Deleted pods that only a finalizer keeps: `wait`, or count them as gone once they have stopped."""
    silent_node: Duration = timedelta(minutes=2)
    """How long to wait for a node that is not Ready."""

    @field_validator("protecting")
    @classmethod
    def _compared_in_small_letters(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        return {key: tuple(map(str.lower, values)) for key, values in value.items()}

    @model_validator(mode="after")
    def _fits_into_a_plan(self) -> "Drain":
        size = wire_size(self.wire())
        if size > LARGEST:
            raise ValueError(
                f"it takes {size} bytes and travels with every fault: at most {LARGEST}; write patterns, "
                "fewer or shorter entries"
            )
        return self

    def wire(self, fault_rule: str | None = None) -> DrainPolicy:
        """What a drain is told that is for faults of this rule; for None all rules count."""
        return DrainPolicy(
            rules=tuple(
                rule.wire() for rule in self.rules if fault_rule is None or rule.counts_for(fault_rule)
            ),
            workloads=tuple(pods.wire() for pods in self.workloads),
            protecting=self.protecting,
            essential=(*TEMPORAL, *(pods.wire() for pods in self.essential)),
            bare_pods=self.bare_pods,
            empty_dir=self.empty_dir,
            finalizers=self.finalizers,
            silent_node=self.silent_node,
        )


def longest_wait(policy: DrainPolicy) -> timedelta:
    """Longest time that a drain leaves pods alone because of its rules, from the start of the drain."""
    return max((rule.deadline for rule in policy.rules), default=timedelta(0))
