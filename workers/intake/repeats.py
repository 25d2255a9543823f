"""Faults that an open incident is known to have, and how often each came again since that was last told.

A repeat of a known fault costs the incident's history nothing. How often it came is told once for every power
of ten of an incident's deliveries, whatever the number of its faults: five signals for 100,000 of them.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime

from gpu_runbooks.activities.model.fault import Repeated
from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.workers.intake.news import News, Verdict

MOST_INCIDENTS = 5000
MOST_FAULTS = 500
"""Of one incident. One that is forgotten is recognised by the incident itself."""

MOST_FOLDED = 5000
"""Fingerprints of an incident that count as another one's."""

MOST_TOLD = 100
"""Faults in one word about repeats: an incident knows as many fingerprints."""


@dataclass
class _Run:
    """One run of an incident."""

    run_id: str
    untold: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """Repeats by fingerprint, of every known fault."""
    deliveries: int = 0
    tell_at: int = 10
    same: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """Fingerprints that only say what another one says: that of the fault which the incident has."""
    news: News = field(default_factory=News)


class Repeats:
    """What the intake remembers of open incidents. Bounded, and true only together with a fresh description.

    An incident that ended counts no more as soon as it is described: run id and status are asked for first.
    """

    def __init__(self) -> None:
        self._runs: OrderedDict[str, _Run] = OrderedDict()

    def knows(self, workflow_id: str, run_id: str, fingerprint: str) -> bool:
        """Whether this run is known to have the fault."""
        run = self._runs.get(workflow_id)
        if run is None or run.run_id != run_id:
            return False
        return fingerprint in run.untold or fingerprint in run.same

    def has(self, workflow_id: str, fingerprint: str) -> bool:
        """Whether the incident of this id is thought to have the fault; only a description can tell."""
        run = self._runs.get(workflow_id)
        return run is not None and self.knows(workflow_id, run.run_id, fingerprint)

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
        run = self._run(workflow_id, run_id)
        fingerprint = run.same.get(fingerprint, fingerprint)
        self.learn(workflow_id, run_id, fingerprint)
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

    def judge(self, workflow_id: str, run_id: str, report: FaultReport, clock: float) -> Verdict:
        """Whether this run is to be told of a fault that it does not know by its fingerprint."""
        return self._run(workflow_id, run_id).news.judge(report, clock)

    def told(self, workflow_id: str, run_id: str, report: FaultReport, clock: float) -> None:
        """Remember that this run was told of a fault."""
        self.learn(workflow_id, run_id, report.fault.fingerprint)
        self._run(workflow_id, run_id).news.told(report, clock)

    def fold(self, workflow_id: str, run_id: str, fingerprint: str, same_as: str) -> None:
        """Count a fingerprint as another one from here on."""
        run = self._run(workflow_id, run_id)
        run.same[fingerprint] = same_as
        while len(run.same) > MOST_FOLDED:
            run.same.popitem(last=False)

    def _run(self, workflow_id: str, run_id: str) -> _Run:
        run = self._runs.get(workflow_id)
        if run is None or run.run_id != run_id:
            run = self._runs[workflow_id] = _Run(run_id)
        self._runs.move_to_end(workflow_id)
        while len(self._runs) > MOST_INCIDENTS:
            self._runs.popitem(last=False)
        return run
