"""Faults that an open incident is known to have, and how often each came again since that was last told.

A repeat of a known fault costs the incident's history nothing. How often it came is told once for every power
of ten of an incident's deliveries, whatever the number of its faults: five signals for 100,000 of them.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime

from gpu_runbooks.activities.model.fault import Fault, Repeated

MOST_INCIDENTS = 5000
MOST_FAULTS = 500
"""Of one incident. One that is forgotten is recognised by the incident itself."""

MOST_TOLD = 100
"""Faults in one word about repeats: an incident knows as many fingerprints."""

FREE_NEWS = 100
"""Joins of one kind of fault (code and place) that an incident takes as they come: five events each."""

PACE = 60.0
"""Seconds between two later joins of that kind, such as of an alert that flaps."""


@dataclass
class _Run:
    """One run of an incident."""

    run_id: str
    untold: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """Repeats by fingerprint, of every known fault."""
    deliveries: int = 0
    tell_at: int = 10
    news: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By kind of fault: how many joined, and when the next may."""


class Repeats:
    """What the intake remembers of open incidents. Bounded, and true only together with a fresh description.

    An incident that ended counts no more as soon as it is described: run id and status are asked for first.
    """

    def __init__(self) -> None:
        self._runs: OrderedDict[str, _Run] = OrderedDict()

    def knows(self, workflow_id: str, run_id: str, fingerprint: str) -> bool:
        """Whether this run is known to have the fault."""
        run = self._runs.get(workflow_id)
        return run is not None and run.run_id == run_id and fingerprint in run.untold

    def learn(self, workflow_id: str, run_id: str, fingerprint: str) -> None:
        """Remember that this run has the fault."""
        run = self._run(workflow_id, run_id)
        if fingerprint not in run.untold:
            run.untold[fingerprint] = 0
            run.deliveries += 1
        while len(run.untold) > MOST_FAULTS:
            run.untold.popitem(last=False)

    def count(self, workflow_id: str, run_id: str, fingerprint: str, times: int) -> bool:
        """Count repeats of a fault; True where it is time to tell the incident."""
        self.learn(workflow_id, run_id, fingerprint)
        run = self._run(workflow_id, run_id)
        run.untold[fingerprint] += times
        run.untold.move_to_end(fingerprint)
        run.deliveries += times
        return times > 0 and run.deliveries >= run.tell_at

    def word(self, workflow_id: str, run_id: str, now: datetime) -> Repeated:
        """What is to be told, of the faults that came last; it counts as told."""
        run = self._run(workflow_id, run_id)
        while run.deliveries >= run.tell_at:
            run.tell_at *= 10
        latest = [fingerprint for fingerprint, times in reversed(run.untold.items()) if times][:MOST_TOLD]
        counts = {fingerprint: run.untold[fingerprint] for fingerprint in latest}
        run.untold.update(dict.fromkeys(latest, 0))
        return Repeated(counts=counts, last_seen=now)

    def seconds_until_news(self, workflow_id: str, run_id: str, fault: Fault, clock: float) -> float:
        """How long this kind of fault has to wait before it joins once more; 0 for now, which then counts."""
        news = self._run(workflow_id, run_id).news
        kind = f"{fault.source}:{fault.code}:{fault.entity.uuid}:{fault.entity.pci_address}"
        joined, next_at = news.get(kind, (0, clock))
        if joined >= FREE_NEWS and clock < next_at:
            return next_at - clock
        if kind in news or len(news) < MOST_FAULTS:
            news[kind] = (joined + 1, clock + PACE)
        return 0.0

    def _run(self, workflow_id: str, run_id: str) -> _Run:
        run = self._runs.get(workflow_id)
        if run is None or run.run_id != run_id:
            run = self._runs[workflow_id] = _Run(run_id)
        self._runs.move_to_end(workflow_id)
        while len(self._runs) > MOST_INCIDENTS:
            self._runs.popitem(last=False)
        return run
