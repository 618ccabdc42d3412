"""Benchmarks, one folder each: cases, how one is measured, what the rows must show, and tables.

``python -m benchmarks`` runs them (``__main__``); ``NAME/record.json`` holds what was recorded.
A benchmark is a package with the four names of :class:`Benchmark`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, cast

from pipeloom import Schedule, dump_schedule, verify_schedule

Row: TypeAlias = dict[str, Any]
"""The figures of a case by name; ``part``, ``case`` and ``origin`` are added to those measured."""
Rows: TypeAlias = Sequence[Row]
Size = Literal["small", "usual", "large"]


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure.

    ``part``: the table that it belongs to. ``name``: unique in its part. ``given``: what
    ``measure`` needs, to be pickled. ``timed``: the clock decides its figures, so that it is
    measured by itself and recorded on an idle machine only. ``fresh``: in a process of its own.
    """

    part: str
    name: str
    given: Mapping[str, Any] = field(default_factory=dict)
    timed: bool = False
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence about the rows of a part, and whether it is as it must be.

    ``key``: the name by which pages other than the benchmark's own and ``docs/results.md`` quote
    it.
    """

    part: str
    words: str
    met: bool = True
    key: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; ``value`` is a key of the row, or computed from it.

    In a table of groups it is computed from the rows of a group, and a key is that of the first.
    """

    head: str
    value: str | Callable[[Any], Any]
    text: str = ""

    def cell(self, row: Any) -> str:
        """The figure in words; ``-`` for None."""
        if callable(self.value):
            found = self.value(row)
        else:
            found = (row[0] if isinstance(row, list) else row).get(self.value)
        if found is None:
            return "-"
        return found if isinstance(found, str) else format(found, self.text)


def plain(keys: str | Mapping[str, str], text: str = "") -> Iterator[Column]:
    """Columns of figures as they are: keys of the row by heading, or keys that are headings."""
    heads = {key: key for key in keys.split()} if isinstance(keys, str) else keys
    return (Column(head, key, text) for head, key in heads.items())


class Table:
    """The columns of a part, one line for each row, or for each group of rows with one ``by``.

    ``total``: a line for all rows at the end. ``where``: the rows that are shown.
    """

    def __init__(
        self,
        *columns: Column,
        by: Callable[[Row], Any] | None = None,
        total: bool = False,
        where: Callable[[Row], bool] = lambda row: True,
    ) -> None:
        self.columns, self.by, self.total, self.where = columns, by, total, where


class Benchmark(Protocol):
    """A benchmark, or a part of one, as the front (``__main__``) runs it.

    ``cases(size)``: ``small`` takes at most about a minute; a larger size has all of a smaller
    one's. ``measure(case)``: the figures of a case. ``judge(rows)``: claims about recorded or
    measured rows, of which some cases may be missing. ``columns``: tables, by part.

    A benchmark may also have ``worse(before, now)``, which compares a row with the one recorded
    (by default they have to be equal unless they are timed), and ``files(rows)``: the text of files
    of the repository that are made from the rows, by path; and ``ROOMS`` of the library that it
    measures.
    """

    @property
    def columns(self) -> Mapping[str, Table]: ...

    def cases(self, size: Size) -> Iterable[Case]: ...

    def measure(self, case: Case) -> Row: ...

    def judge(self, rows: Rows) -> Iterable[Claim]: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """Several benchmarks as one, each with tables of its own."""

    of: Sequence[Benchmark]

    @property
    def columns(self) -> Mapping[str, Table]:
        return {part: table for one in self.of for part, table in one.columns.items()}

    def cases(self, size: Size) -> Iterator[Case]:
        for one in self.of:
            yield from one.cases(size)

    def measure(self, case: Case) -> Row:
        return next(one for one in self.of if case.part in one.columns).measure(case)

    def judge(self, rows: Rows) -> Iterator[Claim]:
        for one in self.of:
            if own := [row for row in rows if row["part"] in one.columns]:
                yield from one.judge(own)


def parts(*modules: object) -> Parts:
    """The benchmark made of these modules."""
    return Parts([cast(Benchmark, module) for module in modules])


def of_part(rows: Rows, part: str) -> list[Row]:
    return [row for row in rows if row["part"] == part]


def violations(schedule: Schedule) -> list[str]:
    """The faults that the verifier finds in the file of a schedule."""
    return verify_schedule(dump_schedule(schedule))
