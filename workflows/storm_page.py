"""The call for a person when a storm begins, and its end. Pure."""

from datetime import datetime

from gpu_runbooks.activities.model.page import Page
from gpu_runbooks.activities.names import fleet_id
from gpu_runbooks.workflows.storm import Storm

ALERT = "GpuRunbookStorm"

ADVICE = (
    "Suspect the detector, the driver or the network before the nodes, and mend that. Nothing is disrupted "
    "meanwhile, and afterwards nodes are taken up one by one. If it is no storm: temporal workflow update "
    "execute --workflow-id {guard} --name end_storm --input "
    '\'{{"operator": "...", "reason": "...", "storm": "{storm}"}}\''
)


def page_for(storm: Storm, cluster: str, until: datetime) -> Page:
    """The alert of a storm, always with the same labels: it is one alert however often it is repeated."""
    guard = fleet_id(cluster)
    cause = f"; suspected common cause: {storm.cause}" if storm.cause else ""
    return Page(
        alert=ALERT,
        severity="critical",
        labels={"cluster": cluster, "storm": storm.id, "workflow": guard},
        summary=f"{storm.in_words()}{cause}",
        advice=ADVICE.format(guard=guard, storm=storm.id),
        since=storm.began,
        until=until,
        over=storm.ended is not None,
    )
