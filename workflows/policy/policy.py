"""The site's policy: what a person writes into the policy file, as types.

Unknown fields are refused here, unlike in wire types: a misspelt `tolerations` must not mean "none".
`file` reads the file and names lines; `planning` turns the policy into a plan for one fault.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Annotated

from pydantic import Field, model_validator

from gpu_runbooks.activities.aws.instance_types import expected_hardware
from gpu_runbooks.activities.model.drain import TEMPORAL
from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.plan import ExpectedHardware
from gpu_runbooks.activities.model.repair import RepairPolicy
from gpu_runbooks.workflows.policy.asking import Operator
from gpu_runbooks.workflows.policy.drain import Drain
from gpu_runbooks.workflows.policy.faults import FaultRule
from gpu_runbooks.workflows.policy.fields import Duration, InstanceType, Key, Name, Written, wire_size
from gpu_runbooks.workflows.policy.freezes import Freezes
from gpu_runbooks.workflows.policy.hardware import Hardware
from gpu_runbooks.workflows.policy.intake import Intake
from gpu_runbooks.workflows.policy.ladders import BUILT_IN_LADDERS, Ladder
from gpu_runbooks.workflows.policy.pools import MOST_POOLS, Mode, Pool
from gpu_runbooks.workflows.policy.repair import Repair
from gpu_runbooks.workflows.policy.storm import StormSection
from gpu_runbooks.workflows.policy.tables import built_in_tables

LARGEST = 12 * 1024
"""Bytes of what a plan takes from a policy: a payload holds 16 KiB, node, ladder and fault included."""


class TestPod(Written):
    """The pod that loads all GPUs of a node before it returns."""

    __test__ = False  # not a test case of pytest

    image: Annotated[str, Field(min_length=1, max_length=500)]
    """Image of the pod that loads all GPUs of a node before it returns."""
    command: Annotated[tuple[Annotated[str, Field(max_length=500)], ...], Field(min_length=1, max_length=20)]
    """Command of that pod; it ends with 0 only if every GPU did its work."""
    tolerations: Annotated[tuple[Key, ...], Field(max_length=20)] = ()
    """Keys of taints that the pool's nodes carry by design, such as [example.com/training]."""


class Validation(Written):
    """How a node is tested before it returns."""

    test_pod: TestPod
    """The pod that loads all GPUs, such as {image: ..., command: [...]}."""


class Policy(Written):
    """A policy file of gpu-runbooks."""

    mode: Mode
    """`observe` decides and records, `enforce` acts too."""
    intake: Intake = Intake()
    """How signals are taken: labels that name nodes, ages, and what belongs together."""
    pools: Annotated[tuple[Pool, ...], Field(min_length=1, max_length=MOST_POOLS)]
    """Pools of nodes, each with selector and budget; a node outside all of them is never touched."""
    hardware: Annotated[dict[InstanceType, Hardware], Field(max_length=200)] = Field(default={})
    """What a healthy node has, by instance type, such as {p5.48xlarge: {efa_interfaces: 16}}."""
    ladders: Annotated[dict[Name, Ladder], Field(max_length=100)] = Field(default={})
    """Ladders by name, in addition to the built-in ones or in their place."""
    faults: Annotated[tuple[FaultRule, ...], Field(max_length=1000)] = ()
    """Rules that stand in place of the built-in catalogue, entry by entry."""
    drain: Drain = Drain()
    """How pods leave a node."""
    repair: Repair = Repair()
    """How machines are repaired, in all pools that say nothing else."""
    validation: Validation
    """How a node is tested before it returns, such as {test_pod: {image: ..., command: [...]}}."""
    operator: Operator = Operator()
    """What an incident does that waits for a person, such as {reminder: 4h, deadline: 24h, then: page}."""
    probation: Duration = timedelta(minutes=30)
    """How long a node is watched after its return: the same fault goes on where the ladder stood."""
    storm: StormSection = StormSection()
    """When so many nodes have faults that the alarms are doubted, such as {nodes: 10, within: 10m}."""

    freezes: Freezes = ()
    """Times in which nothing is disrupted in any pool, such as the days before a launch."""

    @model_validator(mode="after")
    def _fits_into_a_plan(self) -> "Policy":
        shared = wire_size(self.drain.wire()) + wire_size(self.validation)
        shared += wire_size(self, include={"freezes"})
        for pool in self.pools:
            size = shared + wire_size(pool, include={"selector", "owners", "windows", "freezes"})
            if size > LARGEST:
                raise ValueError(
                    f"selector, owners, windows and freezes of pool {pool.name}, drain and validation take "
                    f"{size} bytes and travel with every fault: at most {LARGEST}; shorten the longest "
                    "of them"
                )
        return self

    def ladder(self, name: str) -> Ladder | None:
        """Ladder by name, the site's before the built-in one; None for an unknown name."""
        return self.ladders.get(name, BUILT_IN_LADDERS.get(name))

    def ladder_names(self) -> tuple[str, ...]:
        """Names of all ladders, sorted."""
        return tuple(sorted({*BUILT_IN_LADDERS, *self.ladders}))

    def repair_of(self, pool: Pool) -> RepairPolicy:
        """What counts for the repairs of a pool."""
        return pool.repair.over(self.repair.over(RepairPolicy()))

    def probation_of(self, pool: Pool) -> timedelta:
        """How long nodes of a pool are watched after their return."""
        return self.probation if pool.probation is None else pool.probation

    def enforces(self, pool: Pool) -> bool:
        """Whether anything is done in a pool, or only decided and recorded."""
        return (pool.mode or self.mode) == "enforce"

    def expected(self, instance_type: str) -> ExpectedHardware | None:
        """What a healthy node of a type has; None for a type that is unknown or known in part only."""
        built_in = expected_hardware(instance_type)
        written = self.hardware.get(instance_type)
        return built_in if written is None else written.over(built_in, instance_type)

    def rules_for(self, source: FaultSource, code: str, reason: str) -> Iterator[FaultRule]:
        """Rules for a source, a code and a reason, those for this reason before those for all."""
        yield from self._rules.get((source, code, reason), ())
        yield from self._rules.get((source, code, None), ())

    @cached_property
    def _rules(self) -> Mapping[tuple[FaultSource, str, str | None], list[FaultRule]]:
        """Rules by source, code and reason; None for those that name no reason."""
        rules: defaultdict[tuple[FaultSource, str, str | None], list[FaultRule]] = defaultdict(list)
        for rule in self.faults:
            for code in rule.match.written_codes():
                for reason in rule.match.reasons or (None,):
                    rules[rule.match.source, code, reason].append(rule)
        return dict(rules)

    @cached_property
    def digest(self) -> str:
        """Which policy it was: 16 digits of SHA-256 over the content, comments and layout aside.

        What is built in counts, since a release that changes it changes what the same file does.
        """
        content = self.model_dump(mode="json")
        content["ladders"] = {
            name: [step.model_dump(mode="json") for step in self.ladder(name) or ()]
            for name in self.ladder_names()
        }
        content["drain"]["built_in_essential"] = [pods.model_dump(mode="json") for pods in TEMPORAL]
        content["repair"] = self.repair.over(RepairPolicy()).model_dump(mode="json")
        content["built_in_tables"] = built_in_tables()
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]
