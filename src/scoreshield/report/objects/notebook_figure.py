"""A figure that a notebook shows by itself.

A plain figure of Matplotlib is shown only where pyplot is loaded. pyplot keeps every figure in memory, so the library
does not use it.
"""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure of Matplotlib, with its picture for notebooks."""

    def _repr_png_(self) -> bytes:
        """Return the picture."""
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=144)
        return buffer.getvalue()
