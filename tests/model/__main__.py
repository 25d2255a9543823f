"""`make model`: explore all, print what was met, and fail where a rule is broken."""

import argparse
import resource
import sys
import time

from model.explorer import Report
from model.scenarios import DEEP, SHORT, run


def main() -> int:
    """Returns the exit status: 1 where a rule is broken."""
    parser = argparse.ArgumentParser(prog="python -m model", description=__doc__)
    parser.add_argument("--short", action="store_true", help="what `make test` explores")
    arguments = parser.parse_args()
    began, reports = time.process_time(), []
    for report in run(SHORT if arguments.short else DEEP, _show if sys.stderr.isatty() else None):
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)
        print(report, flush=True)
        for violation in report.violations:
            print(f"\n{violation}\n", flush=True)
        reports.append(report)
    seconds = time.process_time() - began
    states = sum(report.states for report in reports)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    broken = sum(len(report.violations) for report in reports)
    print(
        f"\n{states:,} distinct states, {sum(report.transitions for report in reports):,} transitions, "
        f"{seconds:.0f} s of one core, {states / seconds:,.0f} states/s, {memory} MiB; "
        f"{broken or 'no'} rule{'' if broken == 1 else 's'} broken"
    )
    return 1 if broken else 0


def _show(report: Report) -> None:
    print(f"\r\033[K{report}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
