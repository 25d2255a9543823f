"""Text of strangers for log lines, answers and the Temporal UI: one short line without effects."""


def one_line(text: str, longest: int) -> str:
    """Printable characters only, single spaces, cut at `longest`.

    The Temporal UI shows summaries as Markdown, where a link or an image could be loaded: none is left.
    """
    line = " ".join(
        "".join(each if each.isprintable() else " " for each in text[: 4 * longest + 1000]).split()
    )
    return line.replace("](", "] (").replace("<", "< ")[:longest]


def is_inert(text: str) -> bool:
    """Whether a name can be shown as it is: one printable line, and nothing that Markdown would load."""
    return text.isprintable() and not any(mark in text for mark in ("](", "<", "`"))
