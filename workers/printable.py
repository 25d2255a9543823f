"""Text of anybody's as a terminal may show it."""


def printable(text: str, longest: int = 200) -> str:
    """Without what would steer a terminal: anyone may have written it."""
    return "".join(each if each.isprintable() else "?" for each in text[:longest])


def printable_lines(text: str) -> str:
    """Line by line, without what would steer a terminal."""
    return "\n".join(printable(line, 10_000) for line in text.split("\n"))
