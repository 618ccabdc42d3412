"""Dataclasses that are also objects in files, so that their fields are declared only once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, ValidationInfo
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema
from pydantic_core import core_schema as core

from .validation import DocumentFault, Expected, raise_faults, removed_keys, wrong

IN_MEMORY = Field(exclude=True)
"""Annotation of a field of a :class:`Struct` that is not a key in files."""


class Struct:
    """Base class of the frozen dataclasses that are also objects in files.

    Each field is a key of the object, except those that are :data:`IN_MEMORY`. Unknown keys are
    ignored. In a file, ``null`` stands for the default value. Subclasses can set:

    - ``FORMAT``: the value of the key ``format``; empty if the object is a part of another object.
    - ``REQUIRED``: keys that must be in the file although their fields have defaults.
    - ``INLINE``: the name of a field that is itself a struct, whose keys are written among the keys
      of this object instead of in an object of their own.
    - ``ALSO``: further known keys, which the subclass reads in its own code.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(revalidate_instances="always")
    FORMAT: ClassVar[str] = ""
    REQUIRED: ClassVar[tuple[str, ...]] = ()
    INLINE: ClassVar[str] = ""
    ALSO: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def _before(cls, data: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Return the object of a file as it is to be validated; subclasses can change it."""
        return data

    def _after(self, info: ValidationInfo) -> Any:
        """Check values that depend on each other; return the struct, or a changed one."""
        return self

    def values(self) -> dict[str, Any]:
        """The values of the fields, by their keys in files."""
        found = {key: getattr(self, name) for key, name in _names(type(self)).items()}
        inline = found.pop(self.INLINE, None)
        return found if inline is None else inline.values() | found

    @classmethod
    def declared(cls) -> dict[str, Any]:
        """The type annotation of each known key in files, including ``INLINE`` and ``ALSO``."""
        hints = get_type_hints(cls, include_extras=True)
        inline = get_type_hints(hints[cls.INLINE], include_extras=True) if cls.INLINE else {}
        words = {"format": f'"{cls.FORMAT}"', "version": "1"} if cls.FORMAT else {}
        marks = {key: Annotated[int, Expected(expected)] for key, expected in words.items()}
        own = {key: hints[name] for key, name in _names(cls).items()}
        return inline | own | marks | dict.fromkeys(cls.ALSO, object)

    @classmethod
    def __get_pydantic_core_schema__(cls, _: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        reference = handler(cls)
        # changed in place, as pydantic returns the reference for all later uses
        found: Any = handler.resolve_ref_schema(reference)
        inner = dict(found)
        for field in inner["schema"]["fields"]:
            if field["name"] in cls.REQUIRED:
                field["schema"] = field["schema"]["schema"]  # without the default
        name = inner.pop("ref")
        before = core.with_info_before_validator_function(cls._entered, inner)
        found.clear()
        found.update(core.with_info_after_validator_function(cls._after, before, ref=name))
        return reference

    @classmethod
    def _entered(cls, data: object, info: ValidationInfo) -> object:
        if not isinstance(data, dict):
            return data
        known, hidden, needed = _keys(cls)
        if not data.keys() <= known:
            raise_faults(removed_keys(data, known))
        raise_faults(_marked(data, cls.FORMAT))
        given = cls._before(data, info).items()
        found = {k: v for k, v in given if k not in hidden and (v is not None or k in needed)}
        return found | ({cls.INLINE: data} if cls.INLINE else {})


def _find_names(struct: Any) -> dict[str, str]:
    hints = get_type_hints(struct, include_extras=True)
    found = {}
    for field in fields(struct):
        notes = [note for note in get_args(hints[field.name]) if isinstance(note, FieldInfo)]
        if not any(note.exclude for note in notes):
            found[next((note.alias for note in notes if note.alias), field.name)] = field.name
    return found


_names: Callable[[Any], dict[str, str]] = cache(_find_names)
"""A function that returns the field name for each key (in files) of a struct class."""


def _find_keys(struct: Any) -> tuple[set[str], set[str], set[str]]:
    names, every = _names(struct), fields(struct)
    hidden = {field.name for field in every} - names.keys()
    needed = {field.name for field in every if field.default is MISSING} | {*struct.REQUIRED}
    return set(struct.declared()), hidden, {k for k, name in names.items() if name in needed}


_keys: Callable[[Any], tuple[set[str], set[str], set[str]]] = cache(_find_keys)
"""A function that returns three sets for a struct class: all known keys, the names of fields that
are not keys, and the keys that a file must contain."""


def _marked(data: dict[Any, Any], name: str) -> Iterator[DocumentFault]:
    """Yield the faults of the keys ``format`` and ``version`` in ``data``.

    ``name``: the right format; if it is "", the object is not a whole file, and has no faults.
    """
    for key, expected in {"format": name, "version": 1}.items() if name else ():
        if key not in data:
            yield DocumentFault((key,), "missing", data)
        elif type(data[key]) is not type(expected) or data[key] != expected:
            yield DocumentFault((key,), wrong(json.dumps(expected)), data[key])


def written(value: Any) -> Any:
    """Convert a :class:`Struct`, or a value in one, to JSON types.

    Keys with the values None, False or () are left out. Infinity (no limit) becomes None.
    """
    if isinstance(value, Struct | dict):
        given = value if isinstance(value, dict) else value.values()
        known = {k: v for k, v in given.items() if not (v is None or v is False or v == ())}
        return {key: written(each) for key, each in known.items()}
    if isinstance(value, list | tuple):
        return [written(each) for each in value]
    if isinstance(value, Enum):
        return value.value
    return None if value == math.inf else value
