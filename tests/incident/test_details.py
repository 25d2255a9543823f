"""What the details of an incident say of its waits, and of who was called."""

from datetime import timedelta

import pytest
from incident.plans import T0, report

from gpu_runbooks.workflows.audit import live_details
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.phases import Phase


def shown(**state) -> str:
    subject = Incident.open("test", "node/test/n1", "run", report(), T0)
    return live_details(subject.model_copy(update=state))


ASKING = {"question": "what now?", "asked_since": T0, "phase": Phase.NEEDS_OPERATOR}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"phase": Phase.STOPPED, "stopped": "storm s1 of xid 79"}, "**Stopped:** storm s1 of xid 79"),
        ({"phase": Phase.WAITING_FOR_SLOT}, "workflow `budget/test/p5` say who has the slots"),
        (ASKING, "nobody was called yet"),
        ({**ASKING, "paged": True, "page_reached": ("event", "alertmanager")}, "an alert is raised"),
        ({**ASKING, "paged": True, "page_reached": ("event",)}, "only an Event on the node says so"),
        ({**ASKING, "paged": True, "page_problem": "503"}, "**not everybody could be called**: 503"),
        ({**ASKING, "paged": True, "overdue": True}, "nobody answered within"),
        ({**ASKING, "asked_since": T0 + timedelta(hours=1)}, "Asked since 2026-01-01 01:00:00 UTC"),
    ],
)
def test_details_say_it(state, words):
    assert words in shown(**state)
