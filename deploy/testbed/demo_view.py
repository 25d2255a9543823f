"""The demo's tables: a live one while incidents run, and the summary at the end."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from gpu_runbooks.workflows.severity import REPAIRS
from testbed.incidents import Incident
from testbed.scenarios import Scenario

COLOURS = {"needs-operator": "bold red", "closed": "green", "waiting-for-slot": "yellow"}


def live(rows: Sequence[tuple[Scenario, Incident]], note: str) -> Table:
    """Where each incident stands now."""
    table = Table(title="Incidents", caption=note, title_justify="left", caption_justify="left")
    for heading in ("node", "fault", "phase", "acts so far", "time"):
        table.add_column(heading)
    for scenario, incident in rows:
        table.add_row(
            incident.node,
            f"Xid {scenario.xid}, {scenario.name}",
            _phase(incident),
            _acts(incident.acts),
            _seconds(incident),
        )
    return table


def summary(rows: Sequence[tuple[Scenario, Incident]]) -> Table:
    """How each incident ended, and the proof of its last act but the return."""
    table = Table(
        title="Summary (! before an act: no proof, so the next rung followed)",
        title_justify="left",
        show_lines=True,
    )
    for heading in ("node", "fault", "rungs", "proof", "time", "as it should"):
        table.add_column(heading, overflow="fold")
    for scenario, incident in rows:
        right = ended_right(scenario, incident)
        table.add_row(
            incident.node,
            f"Xid {scenario.xid}, {scenario.name}",
            _acts(incident.acts) if incident.acts else Text("none: nothing was touched"),
            _proof(incident),
            _seconds(incident),
            Text("yes", style="green")
            if right
            else Text(f"NO: {incident.outcome or 'open'}", style="bold red"),
        )
    return table


def plain(scenario: Scenario, incident: Incident) -> str:
    """One incident in one line, for where there is no terminal."""
    phase = incident.outcome or (incident.status.phase if incident.status else "not begun")
    acts = " ".join(incident.acts) or "-"
    return f"{_seconds(incident):>6}  {incident.node}  Xid {scenario.xid}  {phase}  {acts}"


def ended_right(scenario: Scenario, incident: Incident) -> bool:
    """Whether outcome and acts are those that the scenario must come to."""
    return incident.outcome == scenario.outcome and tuple(incident.acts) == scenario.acts


def _phase(incident: Incident) -> Text:
    if incident.status is None:
        return Text("…", style="dim")
    phase = str(incident.status.phase)
    if not incident.answers:
        return Text(f"{phase} (no worker)", style="dim")
    return Text(incident.outcome or phase, style=COLOURS.get(phase, "cyan"))


def _acts(acts: Sequence[str]) -> Text:
    """Acts in order; one without proof has a `!` before it, and a line through it where a terminal can."""
    parts = [Text(act, style="red strike" if act.startswith("!") else "green") for act in acts]
    return Text(" → ").join(parts)


def _proof(incident: Incident) -> str:
    if incident.status is None:
        return ""
    proofs = [act.proof for act in incident.status.acts if act.rung in REPAIRS]
    return proofs[-1] if proofs else incident.status.reason


def _seconds(incident: Incident) -> str:
    return f"{incident.took.total_seconds():.0f} s"
