"""How slots are given after a storm: one, and when that one came back, one more in each interval. Pure."""

from datetime import datetime, timedelta

from pydantic import BaseModel

from gpu_runbooks.activities.model.slot import SlotRequest


class Pace(BaseModel):
    """Where the pace is. A new storm, or another word of the guard, begins with a new one."""

    probe: str = ""
    """Run of the incident that got the first slot."""
    node: str = ""
    came: bool = False
    """It gave its slot back."""
    last: datetime | None = None
    """When the last slot was given."""

    def free(self, every: timedelta, now: datetime) -> int:
        """Slots that may be given now."""
        if not self.probe:
            return 1
        due = self.due(every)
        return 1 if due is not None and now >= due else 0

    def due(self, every: timedelta) -> datetime | None:
        """When the next slot may be given; None while only the first one's return decides."""
        return self.last + every if self.came and self.last is not None else None

    def gave(self, holder: SlotRequest, now: datetime) -> "Pace":
        """A slot was given."""
        if self.probe:
            return self.model_copy(update={"last": now})
        return Pace(probe=holder.run_id, node=holder.node, last=now)

    def came_back(self, holder: SlotRequest, now: datetime) -> "Pace":
        """A slot was given back, however its incident ended."""
        first = holder.run_id == self.probe and not self.came
        return self.model_copy(update={"came": True, "last": now}) if first else self

    def in_words(self) -> str:
        if self.probe and not self.came:
            return f"node {self.node} is the first, and has its slot still"
        return "the next one follows in a while"
