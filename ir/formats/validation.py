"""The base of all document formats, and the conversion of validation errors into lines.

Documents are pydantic models. All faults of a document are reported at once, one line each: the
file, the keys of the location, the expected and the given value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from itertools import islice
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import chain_schema, custom_error_schema, float_schema, int_schema
from typing_extensions import is_typeddict

from ..errors import InputError
from ..removed import replaced
from .json_reader import format_hint, show, unmarked_hint

MOST_HINTS = 1000
"""The most unknown keys of one object that are compared with known ones."""
ALIKE = 0.75
"""The least similarity, ignoring case and underscores, for a hint on a misspelt key: ``tf`` for
t_f, ``memory_limits``; but not t_b for t_f."""

_WORDS = {
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "string_type": "a string",
    "bool_type": "true or false",
    "too_short": "at least one entry",
}


class Document(BaseModel):
    """An object in a file. Keys that are not declared are accepted, and kept for hints."""

    model_config = ConfigDict(strict=True, extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _refuse_removed(cls, data: object) -> object:
        """Refuse removed keys that have a value, as they would be ignored silently."""
        if isinstance(data, dict):
            given = (key for key, value in data.items() if value is not None)
            unknown = (key for key in given if key not in cls.model_fields)
            lines = ((key, replaced(f"key {key}")) for key in unknown)
            raise_faults(DocumentFault((key,), removed(line)) for key, line in lines if line)
        return data


D = TypeVar("D", bound=Document)


@dataclass(frozen=True)
class Expected:
    """Field annotation: ``words`` describe what is expected, whatever is wrong with the value.

    With a bound, they are used only if the value is valid but exceeds the bound.
    """

    words: str
    most: float | None = None
    least: float | None = None
    above: float | None = None

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        before = handler(source)
        if self.most is self.least is self.above is None:
            return self._in_words(before)
        bounded = float_schema(le=self.most, ge=self.least, gt=self.above)
        return chain_schema([before, self._in_words(bounded)])

    def _in_words(self, schema: CoreSchema) -> CoreSchema:
        return custom_error_schema(schema, "expected", custom_error_message=self.words)


EXACT = 2**53
_MARKS = {("format",), ("version",)}  # a file without both is not one of ours


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
        number = int_schema(strict=True, ge=self.least, le=self.most)
        return custom_error_schema(number, "expected", custom_error_message=words)


def wrong(words: str) -> PydanticCustomError:
    """A fault: the value is not what ``words`` describe."""
    return PydanticCustomError("expected", "{words}", {"words": words})


def said(line: str) -> PydanticCustomError:
    """A fault whose ``line`` is the whole message."""
    return PydanticCustomError("said", "{line}", {"line": line})


def removed(line: str) -> PydanticCustomError:
    """A fault: a removed key; it is reported only once, even if many objects have it."""
    return PydanticCustomError("removed", "{line}", {"line": line})


class DocumentFault(NamedTuple):
    """A fault at a location relative to the value that a validator gets."""

    at: tuple[str | int, ...]
    kind: PydanticCustomError
    given: object = None


def raise_faults(found: Iterable[DocumentFault]) -> None:
    """Raise ValidationError if there are any faults."""
    details = [InitErrorDetails(type=f.kind, loc=f.at, input=f.given) for f in found]
    if details:
        raise ValidationError.from_exception_data("", details)


def validated(model: type[D], data: object, where: str) -> D:
    """Validate ``data`` as a document of type ``model``; ``where`` names its file.

    Raises InputError with one line per fault. If the file has another format, or neither format nor
    version, there is only a line on that, as the other faults would mislead.
    """
    try:
        return model.model_validate(data, context={})
    except ValidationError as error:
        found = error.errors(include_url=False)
    gone = {f["loc"][-1]: f for f in reversed(found) if f["type"] == "removed"}
    found = [f for f in found if f["type"] != "removed" or f is gone[f["loc"][-1]]]
    formats = [f for f in found if f["loc"][-1:] == ("format",) and f["type"] == "expected"]
    lacking = [f for f in found if f["loc"] in _MARKS and f["type"] == "missing"]
    if len(lacking) == len(_MARKS):
        raise InputError(f"{where}: format: {_line(model, lacking[0])}{unmarked_hint(data)}")
    lines = [f"{_path(where, f['loc'])}: {_line(model, f)}" for f in formats or found]
    known, doubtful = "".join(lines), {} if formats else keys_in_doubt(model, data, where)
    raise InputError(*lines, *(doubtful[key] for key in doubtful if f"({key}: " not in known))


def _path(where: str, location: tuple[str | int, ...]) -> str:
    return where + "".join(
        f"[{part}]" if isinstance(part, int) else f": {part}" for part in location
    )


def _line(model: type[Document], fault: ErrorDetails) -> str:
    if fault["type"] == "missing":
        return _missing(model, fault)
    if fault["type"] in {"said", "removed"}:
        return fault["msg"]
    hint = format_hint(fault["msg"].strip('"'), fault["input"])
    return f"expected {_words(fault)}, got {show(fault['input'])}" + (
        hint if fault["loc"][-1:] == ("format",) else ""
    )


def _words(fault: ErrorDetails) -> str:
    if fault["type"] == "literal_error":
        choices: str = fault["ctx"]["expected"]
        return choices.replace("'", "")
    if fault["type"] == "too_long":
        return f"at most {fault['ctx']['max_length']} entries"
    return _WORDS.get(fault["type"], fault["msg"])


def _missing(model: type[Document], fault: ErrorDetails) -> str:
    *way, key = fault["loc"]
    record: Any = model
    for name in way:
        if isinstance(name, str):
            record = _record(_declared(record)[name])
    known = _declared(record)
    meant = (k for k, best in misspelt(fault["input"], known) if best == key)
    hint = next((f" ({k}: unknown key; did you mean {key}?)" for k in meant), "")
    more = record.model_fields[key].description if issubclass(record, BaseModel) else None
    what = f" ({more})" if more and not hint else ""
    return f"missing; expected {_expected_of(record, str(key))}{what}{hint}"


@cache
def _declared(record: Any) -> dict[str, Any]:
    """The annotation of each key of a model or TypedDict."""
    if issubclass(record, BaseModel):
        fields = record.model_fields.items()
        return {name: field.rebuild_annotation() for name, field in fields}
    return get_type_hints(record, include_extras=True)


def _record(annotation: Any) -> Any:
    """The model or TypedDict inside an annotation; None if there is none."""
    if is_typeddict(annotation) or isinstance(annotation, type(BaseModel)):
        return annotation
    return next(filter(None, map(_record, get_args(annotation))), None)


@cache
def _expected_of(record: Any, key: str) -> str:
    """The expectation for a missing key, in the words for any wrong value."""
    try:
        TypeAdapter(_declared(record)[key]).validate_python(object(), context={})
    except ValidationError as error:
        return _words(error.errors(include_url=False)[0])
    return "a value"


def misspelt(data: Collection[str], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Unknown keys of ``data`` that resemble a known one, as (unknown, known) pairs."""
    unknown = list(islice((key for key in data if key not in known), MOST_HINTS))
    bare = {_bare(key): key for key in known} if unknown else {}
    for key in unknown:
        for best in get_close_matches(_bare(key), bare, 1, ALIKE):
            yield key, bare[best]


def _bare(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "")


def keys_in_doubt(record: Any, data: object, where: str) -> dict[str, str]:
    """A line for each unknown key that resembles a known one, by key.

    Such keys are not faults, as other programs may add their own keys to a document.
    """
    lines: dict[str, str] = {}
    for path, declared, found in _objects(record, data, where):
        for key, meant in misspelt(found, declared):
            # only the first object with this key is named
            lines.setdefault(key, f"{path}: {key}: unknown key, not used; did you mean {meant}?")
    return lines


def _objects(record: Any, value: object, where: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """All objects in ``value``, each with its location and the annotations of its known keys."""
    if isinstance(value, dict):
        declared = _declared(record)
        yield where, declared, value
        for key in declared.keys() & value.keys():
            if inner := _record(declared[key]):
                yield from _objects(inner, value[key], f"{where}: {key}")
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from _objects(record, inner, f"{where}[{i}]")
