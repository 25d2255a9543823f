"""The search attributes of ours: the single list that code and registration share.

At most six Keywords and one KeywordList, since SQL visibility stores have ten and three columns of these.
"""

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.plan import Plan
from gpu_runbooks.workflows.phases import Phase

RUNBOOK_CLUSTER = SearchAttributeKey.for_keyword("RunbookCluster")
RUNBOOK_POOL = SearchAttributeKey.for_keyword("RunbookPool")
RUNBOOK_NODE = SearchAttributeKey.for_keyword("RunbookNode")
RUNBOOK_FAULT = SearchAttributeKey.for_keyword("RunbookFault")
RUNBOOK_PHASE = SearchAttributeKey.for_keyword("RunbookPhase")
RUNBOOK_OUTCOME = SearchAttributeKey.for_keyword("RunbookOutcome")
RUNBOOK_HARDWARE = SearchAttributeKey.for_keyword_list("RunbookHardware")
"""Instance ids and GPU UUIDs that an incident touched."""

SEARCH_ATTRIBUTES = (
    RUNBOOK_CLUSTER,
    RUNBOOK_POOL,
    RUNBOOK_NODE,
    RUNBOOK_FAULT,
    RUNBOOK_PHASE,
    RUNBOOK_OUTCOME,
    RUNBOOK_HARDWARE,
)


def opening(cluster: str, plan: Plan, fault: Fault, phase: Phase = Phase.OPEN) -> TypedSearchAttributes:
    """Attributes of an incident as it opens."""
    hardware = [name for name in (plan.identity.instance_id, fault.entity.uuid) if name]
    return TypedSearchAttributes(
        [
            SearchAttributePair(RUNBOOK_CLUSTER, cluster),
            SearchAttributePair(RUNBOOK_POOL, plan.pool),
            SearchAttributePair(RUNBOOK_NODE, plan.identity.name),
            SearchAttributePair(RUNBOOK_FAULT, f"{fault.source}:{fault.code}"),
            SearchAttributePair(RUNBOOK_PHASE, phase),
            SearchAttributePair(RUNBOOK_HARDWARE, hardware),
        ]
    )


async def register(client: Client) -> list[str]:
    """Register what the namespace lacks; returns the names that were added.

    An unknown attribute fails the start of an incident, so this runs before the first worker.
    """
    listed = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    missing = [key for key in SEARCH_ATTRIBUTES if key.name not in listed.custom_attributes]
    if missing:
        types = {key.name: IndexedValueType.ValueType(key.indexed_value_type) for key in missing}
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=types)
        )
    return [key.name for key in missing]
