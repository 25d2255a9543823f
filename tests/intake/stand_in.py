"""The far side of the intake: workflows that answer as those of the product do, and end when told."""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from gpu_runbooks.workflows.search_attributes import RUNBOOK_PHASE


@workflow.defn(name="NodeRemediation")
class StandIn:
    @workflow.init
    def __init__(self, raw: dict[str, Any]) -> None:
        self._faults = [raw["report"]["fault"]]
        self._cleared: list[dict[str, Any]] = []
        self._fingerprints = [raw["report"]["fault"]["fingerprint"]]
        self._machine = raw["report"]["plan"]["identity"]["provider_id"]
        self._repeated: list[dict[str, Any]] = []
        self._over = False

    @workflow.run
    async def run(self, raw: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - read in __init__
        await workflow.wait_condition(lambda: self._over)
        return {"outcome": "returned", "fingerprints": self._fingerprints}

    @workflow.update
    def report_fault(self, report: dict[str, Any]) -> str:
        self._fingerprints.append(report["fault"]["fingerprint"])
        self._faults.append(report["fault"])
        return "joined"

    @report_fault.validator
    def _validate(self, report: dict[str, Any]) -> None:
        if report["fault"]["fingerprint"] in self._fingerprints:
            raise ApplicationError("known", type="Known")
        if report["plan"]["identity"]["provider_id"] != self._machine:
            raise ApplicationError("about another machine", type="OtherMachine")

    @workflow.signal
    def end(self) -> None:
        self._over = True

    @workflow.signal
    def show(self, phase: str) -> None:
        workflow.upsert_search_attributes([RUNBOOK_PHASE.value_set(phase)])

    @workflow.query
    def fingerprints(self) -> list[str]:
        return self._fingerprints

    @workflow.signal
    def condition_cleared(self, cleared: dict[str, Any]) -> None:
        self._cleared.append(cleared)

    @workflow.query
    def faults(self) -> list[dict[str, Any]]:
        return self._faults

    @workflow.signal
    def repeated(self, word: dict[str, Any]) -> None:
        self._repeated.append(word)

    @workflow.query
    def repeats(self) -> list[dict[str, Any]]:
        return self._repeated

    @workflow.query
    def cleared(self) -> list[dict[str, Any]]:
        return self._cleared


@workflow.defn(name="DisruptionBudget")
class StandInBudget:
    """Keeps what it is asked, and grants nothing."""

    def __init__(self) -> None:
        self._asked: list[dict[str, Any]] = []

    @workflow.run
    async def run(self, raw: dict[str, Any]) -> None:  # noqa: ARG002 - as the product's
        await workflow.wait_condition(lambda: False)

    @workflow.signal
    def request_slot(self, request: dict[str, Any]) -> None:
        self._asked.append(request)

    @workflow.query
    def asked(self) -> list[dict[str, Any]]:
        return self._asked
