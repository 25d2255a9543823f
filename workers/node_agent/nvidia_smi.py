"""Runs `nvidia-smi --gpu-reset` and classifies its answer. What it says is never taken for what it did."""

import re
from collections.abc import Sequence

from gpu_runbooks.activities.model.node_task import ResetOutcome
from gpu_runbooks.workers.node_agent.tool import Tool, ToolAnswer

TOOL = "nvidia-smi"


class ResetTool(Tool):
    """The stand of nvidia-smi on this node."""

    def __init__(self, command: Sequence[str] = (TOOL,)) -> None:
        super().__init__(command)

    async def reset(self, uuids: Sequence[str], limit: float) -> ToolAnswer:
        """Ask for a reset of these GPUs, of all in one command where none is named.

        Returns about `limit` seconds later at the latest.
        """
        named = ["-i", ",".join(uuids)] if uuids else []
        return await self.run(["--gpu-reset", *named], limit)


def _any_of(*phrases: str) -> re.Pattern[str]:
    return re.compile("|".join(phrases), re.IGNORECASE)


GONE = _any_of(
    r"\b(?:gpu|device) (?:is |has been |was )?lost\b",
    r"(?:fallen|fell|dropped|disappeared|vanished|missing) (?:off|from) (?:the )?(?:pcie? )?bus",
    r"no devices (?:were )?found",
    r"no such (?:device|gpu)",
    r"\b(?:gpu|device)\b.{0,60} is (?:inaccessible|not accessible|no longer (?:accessible|present))",
    r"unable to (?:determine the device handle|find|locate)",
    r"(?:gpu|device)\b.{0,60} (?:was |could )?not (?:be )?found",
)
NOT_SUPPORTED = _any_of(
    r"not supported",
    r"unsupported",
    r"does(?: not|n't) support",
    r"reset(?:ting)?\b.{0,60} is (?:not (?:available|permitted|allowed|possible)|disabled|unavailable)\b",
    r"\bnot (?:available|permitted|allowed|possible) (?:on|for|in|with|within|inside|under) "
    r"(?:\w+ )?(?:vgpu|gpu|device|platform|virtual|vm|guest)",
    r"(?:is (?:the|a) )primary gpu",
    r"nicht unterstützt",
    r"pas (?:pris|prise) en charge",
    r"no (?:es |está )?(?:compatible|soportad)",
    r"不支持|不支援|サポートされていません",
)
NEEDS_PEERS = _any_of(
    r"\bpeers?\b",
    r"(?:must|need to|have to|has to|should) (?:also )?be (?:reset|included|specified|selected)",
    r"(?:reset|included|specified) (?:together|in the same command)",
    r"in the same (?:reset )?command",
    r"additional gpus?",
    r"(?:complete|full|entire) set of (?:\w+ ){0,2}gpus",
    r"all (?:\w+ ){0,2}(?:nvlink|connected|linked)(?:[- ]\w+){0,2} gpus",
    r"\b(?:connected|linked) (?:by|via|over|through|with) nvlink",
    r"reset must (?:include|name|be given|list) ",
    r"(?:must|need to|have to|has to|should) be reset (?:too|as well|at once|with)",
)
IN_USE = _any_of(
    r"(?<!not )(?<!longer )(?<!not currently )\bin[- ]use\b",
    r"(?:being|currently|still|already) (?:used|held|opened|accessed)(?: by)?",
    r"\b(?:used|held|occupied|opened) by (?:an)?(?:other|some|one|a) ",
    r"\b(?:resource|device|gpu) (?:is |or resource )?(?:currently |still )?busy\b",
    r"\bebusy\b",
    r"(?<!no )\b(?:an)?(?:other|running|active|more|one|[1-9]\d*|compute) "
    r"(?:process(?:es)?|client|application)s? (?:is|are|still|uses?|using|holds?|has|have)",
    r"\b(?:has|have|by) (?!no )(?:\w+ )?(?:open|active|running|other|live|existing|outstanding) "
    r"(?:handle|client|process|application|context|user|reference)",
    r"(?<!no )(?<!other )(?<!more )\bprocess(?:es)? (?:is|are) "
    r"(?:currently |still )?(?:running|active|attached)",
    r"\b(?:holds?|keeps?|has) (?:the )?(?:gpu|device)(?: \S+)? open",
    r"\b(?:locked|attached|claimed|owned) (?:by|to) (?:an)?(?:other|some|one|a) ",
    r"(?:first|please) (?:kill|stop|terminate|close) (?:all|any|the) (?:\w+ )?(?:process|client|application)",
    r"wird (?:\w+ )*(?:verwendet|benutzt|genutzt)|in (?:Benutzung|Verwendung)|ist belegt|beschäftigt",
    r"en cours d.utilisation|utilisée? (?:actuellement )?par|occupée? par",
    r"en uso\b|(?:siendo|está) (?:utilizad|usad|ocupad)|em uso\b|sendo (?:usad|utilizad)|in uso\b",
    r"正在使用|使用中|被(?:其他|其它|另一|占用|使用)|正被|占用|佔用",
    r"使用されて|사용 중|사용되고|используется|занят|занято",
)
SUCCESS = _any_of(
    r"(?<!not )(?<!be )\bsuccessfully reset",
    r"(?<!not )(?<!be )\breset (?:was |is )?(?:successful|successfully|completed|done)\b",
)
WARNING = re.compile(r"^\W*warning\b", re.IGNORECASE)
FINISH = re.compile(r"^\W*all done\W*$", re.IGNORECASE)

BY_TEXT = (
    (GONE, ResetOutcome.LOST),
    (NOT_SUPPORTED, ResetOutcome.UNSUPPORTED),
    (NEEDS_PEERS, ResetOutcome.NEEDS_PEERS),
    (IN_USE, ResetOutcome.BUSY),
)
"""What helps least comes first: of several GPUs one may be lost and another busy."""

BY_EXIT_CODE = {
    3: ResetOutcome.UNSUPPORTED,
    15: ResetOutcome.LOST,
    19: ResetOutcome.BUSY,
    30: ResetOutcome.UNSUPPORTED,
}
"""Of the exit codes, which are NVML's, those that need no text. 9 (driver not loaded), 10 (interrupt trouble)
and 255 (many things) leave open what became of the GPU."""

WITH_SUCCESS = frozenset({0, 14})
"""14 tells of a damaged InfoROM, which does not keep a reset from being done."""


def classify(answer: ToolAnswer) -> ResetOutcome:
    """What the answer means. The text beats the exit code: a GPU in use was reported with exit 0.

    `DONE` only where nothing was said against it; words that are not known here are `UNKNOWN`.
    """
    if answer.exit_code is None:
        return ResetOutcome.UNRESPONSIVE
    lines = [line for line in answer.output.splitlines() if line.strip()]
    said = "\n".join(line for line in lines if not WARNING.search(line))
    for pattern, outcome in BY_TEXT:
        if pattern.search(said):
            return outcome
    if not said:
        done = ResetOutcome.DONE if answer.exit_code == 0 else ResetOutcome.UNKNOWN
        return BY_EXIT_CODE.get(answer.exit_code, done)
    told = [line for line in said.splitlines() if not FINISH.match(line)]
    if all(map(SUCCESS.search, told)):
        return ResetOutcome.DONE if answer.exit_code in WITH_SUCCESS else ResetOutcome.UNKNOWN
    if SUCCESS.search(said):
        return ResetOutcome.UNKNOWN
    return BY_EXIT_CODE.get(answer.exit_code, ResetOutcome.UNKNOWN)


def reset_some(answer: ToolAnswer) -> bool:
    """Whether the answer says of some GPU that it was reset, whatever it says of others."""
    return SUCCESS.search(answer.output) is not None
