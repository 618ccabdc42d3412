"""Benchmarks: each is a folder with its cases, its measurement, its claims and its tables.

``python -m benchmarks`` runs them (``__main__``) and records the results in ``NAME/record.json``. A
benchmark is a package with the four names of :class:`Benchmark`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, cast

from pipeloom import Schedule, dump_schedule, verify_schedule

Row: TypeAlias = dict[str, Any]
"""The measured values (*figures*) of one case, by name.

``part``, ``case`` (the case's name) and ``origin`` are added after the measurement.
"""
Rows: TypeAlias = Sequence[Row]
Size = Literal["small", "usual", "large"]


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement of a benchmark.

    ``part``: the part of the benchmark, and hence the table, to which the case belongs. ``name``:
    unique within the part. ``given``: what ``measure`` needs to know; can be pickled. ``timed``:
    whether figures depend on the speed of the machine; such a case runs alone and is recorded only
    on an idle machine. ``fresh``: whether the case runs in a new process.
    """

    part: str
    name: str
    given: Mapping[str, Any] = field(default_factory=dict)
    timed: bool = False
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence about the rows of a part. ``met``: whether the rows reach the target in the
    sentence.

    ``key``: the name by which pages quote the claim. The page of the benchmark and
    ``docs/results.md`` list all claims, also those without a key.
    """

    part: str
    words: str
    met: bool = True
    key: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table with the heading ``head``.

    ``value``: a key of the row, or a function of the row that returns the content of the cell. In a
    table with groups, a function gets the list of the group's rows, and a key refers to the first
    row of the group. ``text``: a format specification for numbers.
    """

    head: str
    value: str | Callable[[Any], Any]
    text: str = ""

    def cell(self, row: Any) -> str:
        """The text of the cell for a row, or for a group of rows; ``-`` for None."""
        if callable(self.value):
            found = self.value(row)
        else:
            found = (row[0] if isinstance(row, list) else row).get(self.value)
        if found is None:
            return "-"
        return found if isinstance(found, str) else format(found, self.text)


def plain(keys: str | Mapping[str, str], text: str = "") -> Iterator[Column]:
    """Columns that show figures of a row unchanged.

    ``keys``: maps headings to keys of a row, or is a string of keys, separated by spaces, that are
    also the headings. ``text``: the format specification for all of them.
    """
    heads = {key: key for key in keys.split()} if isinstance(keys, str) else keys
    return (Column(head, key, text) for head, key in heads.items())


class Table:
    """The table of a part: one line per row, or one line per group of rows with equal results of
    ``by``.

    ``total``: add a last line for all rows together. ``where``: only rows for which it returns true
    are shown.
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
    """The interface of a benchmark, or of a part of one.

    * ``cases(size)``: the cases to measure. ``small`` takes at most about a minute, and each size
      contains the cases of the smaller ones.
    * ``measure(case)``: the figures of a case.
    * ``judge(rows)``: claims about measured or recorded rows; rows of some cases may be missing.
    * ``columns``: the tables by part.

    Optional names: ``worse(before, now)`` yields one line per figure that is worse than the
    recorded one (by default, a line per figure that differs, and none for timed cases).
    ``files(rows)`` returns the text of other files that are generated from the rows, by path.
    ``ROOMS`` lists the folders of the library that the benchmark measures.
    """

    @property
    def columns(self) -> Mapping[str, Table]: ...

    def cases(self, size: Size) -> Iterable[Case]: ...

    def measure(self, case: Case) -> Row: ...

    def judge(self, rows: Rows) -> Iterable[Claim]: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """Several benchmarks combined into one. Each keeps its parts and their tables."""

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
    """Combine modules with the interface :class:`Benchmark` into one benchmark."""
    return Parts([cast(Benchmark, module) for module in modules])


def of_part(rows: Rows, part: str) -> list[Row]:
    return [row for row in rows if row["part"] == part]


def violations(schedule: Schedule) -> list[str]:
    """The errors that the verifier finds in ``schedule``, one per line; empty if it is valid."""
    return verify_schedule(dump_schedule(schedule))
