"""What people see of an object in a notebook: a table in HTML, a plot, a data frame, and completion by Tab.

An object describes itself in plain values, `ObjectSummary` and columns. `scoreshield.report.objects` turns them into
HTML, figures and frames, and is imported at the first use. Both hold released data and public facts only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from scoreshield._validation import one_of, validate
from scoreshield.errors import InvalidInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: A library of data frames.
FrameLibrary = Literal["pandas", "polars"]
FRAME_LIBRARIES: tuple[str, ...] = get_args(FrameLibrary)
#: One sequence per column, all of one length.
Columns = dict[str, Any]
#: How many rows of a table a notebook shows.
SHOWN_ROWS = 10


@dataclass(frozen=True)
class ObjectSummary:
    """What a notebook shows of an object.

    Attributes:
        title: What the object is.
        sentence: The most important fact, in a sentence.
        facts: Further facts, by their names.
        columns: A short table.
        caption: What the table shows.
        warnings: What the reader must not overlook.
    """

    title: str
    sentence: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    caption: str = ""
    warnings: tuple[str, ...] = ()


class NotebookObject(ABC):
    """An object that a notebook can show, plot and turn into a data frame."""

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the object with Matplotlib, from released data and public facts only.

        Args:
            ax: The axes to draw on; None makes a new figure.

        Returns:
            The figure. A notebook shows it, and ``figure.savefig(path)`` writes it.

        Raises:
            InvalidInput: Matplotlib is not installed, or there is nothing to draw.
        """
        from scoreshield.report.objects.charts import draw_object

        return draw_object(self, ax)

    @validate(library=one_of(FRAME_LIBRARIES))
    def to_frame(self, library: FrameLibrary = "pandas") -> Any:
        """Return the rows of the object as a data frame. docs/objects.md lists the columns.

        Args:
            library: ``"pandas"`` or ``"polars"``.

        Raises:
            InvalidInput: The library is not installed.
        """
        from scoreshield.report.objects.frames import make_data_frame

        return make_data_frame(self._list_columns(), library)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: one table that needs no script and no other file."""
        from scoreshield.report.objects.html import render_summary

        return render_summary(self._summarise())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Raise an error: NumPy would make an array of one object."""
        del dtype, copy
        raise InvalidInput(f"A {type(self).__name__} holds no array of numbers: use its attributes or to_frame().")

    def __dir__(self) -> list[str]:
        """List the public names alone, for completion."""
        return [name for name in super().__dir__() if not name.startswith("_")]

    @abstractmethod
    def _summarise(self) -> ObjectSummary:
        """Collect what a notebook shows."""

    @abstractmethod
    def _list_columns(self) -> Columns:
        """List the columns of the data frame."""


def cut_columns(columns: Mapping[str, Any], rows: int = SHOWN_ROWS) -> dict[str, Sequence[Any]]:
    """Return the first rows of columns."""
    return {name: list(values[:rows]) for name, values in columns.items()}
