"""What an incident leaves in Temporal for those after it: names of hardware, and its repairs in a memo.

Pure. Names are what the search attribute `RunbookHardware` holds: an instance id (or the provider id of a
machine that has none), a GPU's UUID, `serial:<n>` for a GPU's serial number and `board:<n>` for that of the
board it shares. UUID, serial and board stay with the hardware when it comes back under a new instance id.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any

from pydantic import ValidationError

from gpu_runbooks.activities.model.ledger import PastRepair

MEMO = "repairs"
"""Key of the memo."""

LARGEST_MEMO = 8 * 1024
"""Bytes of one incident's repairs: a list of a hundred incidents with their memos fits into one answer."""

LARGEST_INDEX = 2000
"""Bytes of the names of one incident. The server refuses a search attribute of more than 2,048, in JSON."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._/-]{0,126}", re.ASCII)


def is_hardware_name(name: str) -> bool:
    """Whether it can stand in a query as it is: a node could claim a serial number with quotes in it."""
    return NAME.fullmatch(name) is not None


def indexed(names: Collection[str]) -> list[str]:
    """Names for the search attribute, each once, as many as it holds.

    Serial numbers come last: the UUID of the same GPU finds it as well.
    """
    kept, size = [], 2
    unique = dict.fromkeys(name for name in names if is_hardware_name(name))
    for name in sorted(unique, key=lambda each: each.startswith("serial:")):
        size += len(name) + 3  # its quotes and comma
        if size > LARGEST_INDEX:
            break
        kept.append(name)
    return kept


def repairs_memo(repairs: Sequence[PastRepair]) -> dict[str, Any]:
    """The memo of an incident with these repairs, for `workflow.upsert_memo`. The newest are kept.

    A run that continues as new loses its memo, and writes it again.
    """
    kept: list[dict[str, Any]] = []
    size = 0
    for repair in sorted(repairs, key=lambda each: each.ended, reverse=True):
        size += len(repair.model_dump_json())
        if size > LARGEST_MEMO:
            break
        kept.append(repair.model_dump(mode="json"))
    return {MEMO: kept}


def repairs_of_memo(raw: Any) -> tuple[PastRepair, ...]:
    """Repairs in the value of the memo. What is none is passed over: anyone can start a workflow."""
    if not isinstance(raw, list):
        return ()
    repairs = []
    for item in raw:
        try:
            repair = PastRepair.model_validate(item)
        except ValidationError:
            continue
        if repair.ended.tzinfo is not None:
            repairs.append(repair)
    return tuple(repairs)
