"""The base class of documents, and the conversion of validation errors into faults.

Documents are pydantic models or :class:`.struct.Struct`. All faults of a document are reported
together, each with the file, the location in it, the expected and the given value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError
from pydantic_core import core_schema as core
from typing_extensions import is_typeddict

from ..errors import Fault, InputError
from ..removed import replaced
from .json_reader import format_hint, unmarked_hint

MOST_HINTS = 1000
"""The maximum number of unknown keys of an object that are compared with known keys."""
ALIKE = 0.75
"""The minimum similarity, ignoring case and underscores, of a misspelled and a known key for a
hint: there is one for ``tf`` (t_f) and ``memory_limits``, but none for t_b if only t_f is known."""

_WORDS = {
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "string_type": "a string",
    "bool_type": "true or false",
    "too_short": "at least one entry",
    "dataclass_type": "an object",
    "tuple_type": "a list",
}
INLINE = {"default", "link"}
"""Fields whose keys are among those of the object around them (:attr:`.struct.Struct.INLINE`)."""


D = TypeVar("D")


class Document(BaseModel):
    """Base class of objects in files. Undeclared keys are accepted, and kept for hints."""

    model_config = ConfigDict(strict=True, extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _refuse_removed(cls, data: object) -> object:
        if isinstance(data, dict):
            raise_faults(removed_keys(data, cls.model_fields))
        return data


def removed_keys(data: dict[Any, Any], known: Collection[str]) -> Iterator[DocumentFault]:
    """Yield a fault for each key of ``data`` that was removed from pipeloom's formats.

    Otherwise, such a key would be ignored silently. ``known``: the keys that are still declared.
    """
    for key, value in data.items():
        if value is not None and key not in known and (line := replaced(f"key {key}")):
            yield DocumentFault((key,), removed(line))


@dataclass(frozen=True)
class Expected:
    """Field annotation: if the value is wrong in any way, the fault says ``expected WORDS``.

    With a bound (``most``, ``least``: inclusive; ``above``: exclusive), the field must also be
    within it, and the words are used only if the value violates the bound.
    """

    words: str
    most: float | None = None
    least: float | None = None
    above: float | None = None

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> CoreSchema:
        before = handler(source)
        if self.most is self.least is self.above is None:
            return self._in_words(before)
        bounded = core.float_schema(le=self.most, ge=self.least, gt=self.above)
        return core.chain_schema([before, self._in_words(bounded)])

    def _in_words(self, schema: CoreSchema) -> CoreSchema:
        return core.custom_error_schema(schema, "expected", custom_error_message=self.words)


EXACT = 2**53
_MARKS = {("format",), ("version",)}  # a file without both is of another program


@dataclass(frozen=True)
class Whole:
    """Field annotation: an integer from ``least`` to ``most``, neither ``true`` nor ``2.0``.

    ``most`` defaults to the largest integer up to which a ``float`` is exact.
    """

    least: int = 0
    most: int = EXACT

    def __get_pydantic_core_schema__(self, *_: object) -> CoreSchema:
        most = f" and <= {self.most}" if self.most < EXACT else ""
        words = f"a whole number >= {self.least}{most}"
        number = core.int_schema(strict=True, ge=self.least, le=self.most)
        return core.custom_error_schema(number, "expected", custom_error_message=words)


def wrong(words: str) -> PydanticCustomError:
    """A pydantic error with the message ``expected WORDS, got`` the value."""
    return PydanticCustomError("expected", "{words}", {"words": words})


def said(line: str) -> PydanticCustomError:
    """A pydantic error with ``line`` as the whole message."""
    return PydanticCustomError("said", "{line}", {"line": line})


def removed(line: str) -> PydanticCustomError:
    """A pydantic error with the message ``line`` about a removed key.

    It is reported once, even if many objects have the key.
    """
    return PydanticCustomError("removed", "{line}", {"line": line})


Location: TypeAlias = tuple[str | int, ...]


class DocumentFault(NamedTuple):
    """A fault of a part of the value that a validator gets.

    ``at``: the location of the part, relative to this value. ``kind``: :func:`wrong`, :func:`said`,
    :func:`removed`, or ``missing`` for a missing key. ``given``: the wrong value.
    """

    at: Location
    kind: PydanticCustomError | Literal["missing"]
    given: object = None


def raise_faults(found: Iterable[DocumentFault]) -> None:
    """Raise pydantic's ValidationError with all faults in ``found``, if there are any."""
    details = [InitErrorDetails(type=f.kind, loc=f.at, input=f.given) for f in found]
    if details:
        raise ValidationError.from_exception_data("", details)


def validated(model: type[D], data: object, where: str) -> D:
    """Return ``data`` validated as a document of type ``model``; ``where`` names its file.

    Raises InputError with all faults, and with hints on keys that look misspelled. If the file has
    another format, or neither ``format`` nor ``version``, this is the only fault, as the others
    would mislead.
    """
    record: Any = model
    try:
        found: D = _adapter(record).validate_python(data, context={})
        return found
    except ValidationError as error:
        details = error.errors(include_url=False)
    details.sort(key=lambda detail: len(detail["loc"]))
    gone = {d["loc"][-1]: d for d in reversed(details) if d["type"] == "removed"}
    details = [d for d in details if d["type"] != "removed" or d is gone[d["loc"][-1]]]
    formats = [d for d in details if d["loc"][-1:] == ("format",) and d["type"] == "expected"]
    lacking = [d for d in details if d["loc"] in _MARKS and d["type"] == "missing"]
    if len(lacking) == len(_MARKS):
        fault = _fault(record, lacking[0], where)
        raise InputError(replace(fault, words=fault.words + unmarked_hint(data)))
    faults = [_fault(record, detail, where) for detail in formats or details]
    told = "".join(map(str, faults))
    doubtful = {} if formats else keys_in_doubt(record, data, where)
    raise InputError(*faults, *(doubtful[key] for key in doubtful if f"({key}: " not in told))


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def _path(location: Iterable[str | int]) -> str:
    """``location`` as text for messages, such as ``stages[1]: t_f``."""
    parts = (f"[{x}]" if isinstance(x, int) else f": {x}" for x in location if x not in INLINE)
    return "".join(parts).removeprefix(": ")


def _fault(model: Any, detail: ErrorDetails, where: str) -> Fault:
    key, value = _path(detail["loc"]), detail["input"]
    if detail["type"] == "missing":
        return Fault(*_missing(model, detail), key, where)
    if detail["type"] in {"said", "removed"}:
        return Fault(detail["msg"], None, key, where, value)
    words = _words(detail)
    hint = format_hint(words.strip('"'), value) if detail["loc"][-1:] == ("format",) else ""
    return Fault.about(key, words, value, where, hint)


def _words(fault: ErrorDetails) -> str:
    if fault["type"] in {"literal_error", "enum"}:
        choices: str = fault["ctx"]["expected"]
        return choices.replace("'", "")
    if fault["type"] == "too_long":
        return f"at most {fault['ctx']['max_length']} entries"
    return _WORDS.get(fault["type"], fault["msg"])


def _missing(model: Any, fault: ErrorDetails) -> tuple[str, str]:
    """The words of the fault about a missing key, and a description of the key's valid values."""
    *way, key = fault["loc"]
    record: Any = model
    for name in way:
        if isinstance(name, str):
            record = _record(declared_keys(record)[name])
    known = declared_keys(record)
    meant = (k for k, best in misspelt(fault["input"], known) if best == key)
    hint = next((f" ({k}: unknown key; did you mean {key}?)" for k in meant), "")
    more = _about(record, key)
    what = f" ({more})" if more and not hint else ""
    expected = expected_of(record, str(key))
    return f"missing; expected {expected}{what}{hint}", expected


def _about(record: Any, key: Any) -> str | None:
    """The description in the annotation of ``key`` in ``record``; None without a description."""
    notes = get_args(declared_keys(record)[key])[1:]
    return next((note.description for note in notes if isinstance(note, FieldInfo)), None)


@cache
def declared_keys(record: Any) -> dict[str, Any]:
    """The type annotation of each key of ``record``, a struct, model or TypedDict."""
    if issubclass(record, BaseModel):
        given = record.model_fields.items()
        return {name: field.rebuild_annotation() for name, field in given}
    if hasattr(record, "declared"):
        return dict(record.declared())
    return get_type_hints(record, include_extras=True)


def _record(annotation: Any) -> Any:
    """The struct, model or TypedDict inside an annotation; None if there is none."""
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    if is_model or is_typeddict(annotation) or hasattr(annotation, "declared"):
        return annotation
    return next(filter(None, map(_record, get_args(annotation))), None)


@cache
def expected_of(record: Any, key: str) -> str:
    """The description of the valid values of ``key``, as in faults; ``a value`` if unknown."""
    try:
        TypeAdapter(declared_keys(record)[key]).validate_python(object(), context={})
    except ValidationError as error:
        return _words(error.errors(include_url=False)[0])
    return "a value"


def misspelt(data: Collection[str], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each key of ``data`` that is unknown but resembles a key in ``known``.

    Each is yielded as a pair of this key and the known key.
    """
    unknown = list(islice((key for key in data if key not in known), MOST_HINTS))
    bare = {_bare(key): key for key in known} if unknown else {}
    for key in unknown:
        for best in get_close_matches(_bare(key), bare, 1, ALIKE):
            yield key, bare[best]


def _bare(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "")


def keys_in_doubt(record: Any, data: object, where: str) -> dict[str, Fault]:
    """The faults about unknown keys in ``data`` that resemble a known key.

    They are in a dictionary from the unknown key to its fault. They are only for hints: other
    programs may add their own keys to a document.
    """
    faults: dict[str, Fault] = {}
    for path, declared, found in _objects(record, data, ()):
        for key, meant in misspelt(found, declared):
            # only the first object with this key is named
            words = f"unknown key, not used; did you mean {meant}?"
            faults.setdefault(key, Fault(words, None, _path((*path, key)), where))
    return faults


def _objects(record: Any, value: object, at: Location) -> Iterator[tuple[Location, Any, Any]]:
    """Yield all objects in ``value``, as (location, annotations of the known keys, object).

    ``record``: the struct, model or TypedDict of ``value``. ``at``: the location of ``value``.
    """
    if isinstance(value, dict):
        declared = declared_keys(record)
        yield at, declared, value
        for key in declared.keys() & value.keys():
            if inner := _record(declared[key]):
                yield from _objects(inner, value[key], (*at, key))
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from _objects(record, inner, (*at, i))
