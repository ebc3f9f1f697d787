"""Text that is fit for a terminal, whoever wrote it."""


def printable(line: str) -> str:
    """A line without control characters: a stranger's could move the cursor and rewrite what was said."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)
