"""The keys of the file formats, from their declarations, as tables at the end of their page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NotRequired, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from pipeloom.ir.documents import fields, validation
from pipeloom.ir.formats.certificate import CertificateDocument
from pipeloom.ir.formats.lengths_document import LengthsDocument
from pipeloom.ir.formats.schedule_document import OpEntry, ScheduleDocument
from pipeloom.ir.model.layers import Layer
from pipeloom.ir.model.links import Link, Links
from pipeloom.ir.model.profile import DataParallel, Profile
from pipeloom.ir.model.schedule import Report, Transfer
from pipeloom.ir.model.stage_profile import StageProfile
from pipeloom.planner.clusters.cluster import Cluster
from pipeloom.planner.clusters.efficiency import Efficiency
from pipeloom.planner.clusters.gpus import Gpu

PAGE = "formats.md"
OBJECTS: dict[str, Any] = {
    "Profile": Profile,
    "Profile: entry of `stages`": StageProfile,
    "Profile: entry of `layers` (in addition to those of a stage)": Layer,
    "Profile: `links`": Links,
    "Profile: `host_link`, links in `pairs`; cluster: `inside`, `between`": Link,
    "Profile: `data_parallel`": DataParallel,
    "Schedule": ScheduleDocument,
    "Schedule: entry of `order`": OpEntry,
    "Schedule: entry of `transfers`": Transfer,
    "Schedule: `report`": Report,
    "Certificate": CertificateDocument,
    "Cluster": Cluster,
    "Cluster: `gpu`": Gpu,
    "Cluster: `efficiency`": Efficiency,
    "Lengths": LengthsDocument,
}
"""The objects of the formats by their place: structs, pydantic models or typed dictionaries."""
_UNCHECKED = "a value"
_EACH = {get_args(each)[1].func for each in (fields.Each, fields.MaybeEach)}
"""The validators of numbers that can also be lists with one number per microbatch."""


def with_keys(page: str, markdown: str) -> str:
    """Return the page, in Markdown, with the tables of keys if it is the page on formats."""
    if page != PAGE:
        return markdown
    tables = (
        f"### {place}\n\n| key | value | required |\n| --- | --- | --- |\n{''.join(_rows(record))}"
        for place, record in OBJECTS.items()
    )
    return "\n".join([markdown, "## All keys\n", *tables])


def keys(record: Any) -> Iterator[tuple[str, str, bool]]:
    """Yield each key of an object: its name, the words for its values, and if it is required."""
    needed = _required(record)
    for key, annotation in validation.declared_keys(record).items():
        if get_origin(annotation) in (ClassVar, NotRequired) or key in validation.INLINE:
            continue  # not a key, removed, or an object whose keys are written in this one
        values = _values(record, key, annotation)
        if not values.startswith("none"):
            yield key, values, key in needed


def _rows(record: Any) -> Iterator[str]:
    for key, values, needed in keys(record):
        yield f"| `{key}` | {values} | {'yes' if needed else ''} |\n"


def _required(record: Any) -> set[str]:
    """The keys that an object without any, except the marks of its format, lacks."""
    name = getattr(record, "FORMAT", "")
    marks = {"format": name, "version": 1} if name else {}
    try:
        TypeAdapter(record).validate_python(marks, context={})
    except ValidationError as error:
        missing = [each["loc"][-1] for each in error.errors() if each["type"] == "missing"]
        return {*marks, *map(str, missing)}
    return {*marks}


def _values(record: Any, key: str, annotation: Any) -> str:
    words = validation.expected_of(record, key)
    lists = any(getattr(note, "func", None) in _EACH for note in get_args(annotation)[1:])
    more = ", or a list with one per microbatch" if lists else ""
    return "" if words == _UNCHECKED else f"{words}{more}"
