"""Random damage to JSON values and to bytes.

Half of the damaged documents are crossed with another document, the *donor*: parts or keys of the
donor are put in valid or invalid places.
"""

from __future__ import annotations

import copy
import gzip
import json
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

JUNK: list[Any] = [
    *(None, True, -1, 0, 1, 2, 3, 7, 100, 0.5, 1e-9, -0.5, 1e9, 1e300, 10**400, 2**31, 2**63),
    *(math.nan, math.inf, "", "x", "9F9", "0F0", "\x1b[31mred", "a\nb", "é\u202e\u2028"),
    "x" * 9000,
    *([], [1], [[]], [0, 0], {}, {"a": 1}, [None] * 3),
]
KEYS = ["", "T_F", "memory_limits", "\x1b[2J", "line\nbreak", "x" * 700, "__class__", "tf"]


REMOVED_KEYS = ["nodes", "level", "levels", "host", "packing"]
"""Keys that are only in files of older versions."""


def damaged(value: Any, draw: Random, donors: Sequence[Any]) -> bytes:
    """The bytes of a file of ``value`` (JSON or text) with up to three faults.

    ``donors``: JSON documents with which it may be crossed.
    """
    changed = copy.deepcopy(value)
    if not isinstance(changed, str):
        crossed = draw.random() < 0.5
        for _ in range(draw.choice((0, 1, 1, 1, 1, 2, 3))):
            if crossed:
                draw.choice(_CROSSINGS)(changed, draw, draw.choice(donors))
            else:
                draw.choice(_VALUES)(changed, draw)
    data = changed.encode() if isinstance(value, str) else json.dumps(changed).encode()
    often = isinstance(value, str) or draw.random() < 0.1
    return draw.choice(_BYTES)(data, draw) if often else data


def _containers(value: Any) -> list[Any]:
    """All objects and lists inside ``value``, and itself, that are not empty."""
    if not isinstance(value, dict | list) or not value:
        return []
    inner = value.values() if isinstance(value, dict) else value
    return [value, *(found for item in inner for found in _containers(item))]


def _place(value: Any, draw: Random) -> tuple[Any, Any]:
    """A random container and a key in it.

    Containers near the top, of which there are few, are chosen about as often as deeper ones.
    """
    found = _containers(value)
    if not found:
        return [None], 0
    place = draw.choice(found[: draw.choice((1, 4, 20, len(found)))])
    return place, draw.choice(list(place) if isinstance(place, dict) else range(len(place)))


def _junk(value: Any, draw: Random) -> None:
    place, key = _place(value, draw)
    place[key] = copy.deepcopy(draw.choice(JUNK))


def _drop(value: Any, draw: Random) -> None:
    place, key = _place(value, draw)
    del place[key]


def _transplant(value: Any, draw: Random) -> None:
    """Replace a value by another one of the same document, which often has the right type."""
    place, key = _place(value, draw)
    donor, other = _place(value, draw)
    place[key] = copy.deepcopy(donor[other])


def _near(value: Any, draw: Random) -> None:
    """Change a value slightly: a similar number, a list with a repeated item, a similar name."""
    place, key = _place(value, draw)
    old = place[key]
    if isinstance(old, int | float) and abs(old) < 1e300:
        place[key] = draw.choice((old + 1, old - 1, -old, old * 2, old / 3, 0, old * 1e-12))
    elif isinstance(old, list) and old:
        old.insert(draw.randrange(len(old)), copy.deepcopy(draw.choice(old)))
    elif isinstance(old, str):
        place[key] = draw.choice((old.upper(), old[:-1], old + "0", old.replace("1", "2")))


def _swap(value: Any, draw: Random) -> None:
    lists = [found for found in _containers(value) if isinstance(found, list)]
    if lists:
        of = draw.choice(lists)
        a, b = draw.randrange(len(of)), draw.randrange(len(of))
        of[a], of[b] = of[b], of[a]


def _rename(value: Any, draw: Random) -> None:
    objects = [found for found in _containers(value) if isinstance(found, dict)]
    if objects:
        of = draw.choice(objects[: draw.choice((1, 4, len(objects)))])
        of[draw.choice(KEYS)] = of.pop(draw.choice(list(of)))


def _numbers(value: Any, draw: Random) -> None:
    """Set all numbers with the same key to one value, such as all times to zero."""
    key, new = draw.choice(("t_f", "t_b", "t_w", "m_b", "m_w", "weight_bytes", "start", "end")), 0.0
    new = draw.choice((0.0, 1e-12, 1e80, 1e-300))
    for of in _containers(value):
        if isinstance(of, dict) and key in of:
            of[key] = new


def _objects(value: Any) -> list[dict[str, Any]]:
    return [found for found in _containers(value) if isinstance(found, dict)]


def _replace_by_key(value: Any, draw: Random, donor: Any) -> None:
    """Replace a value by one that has the same key in the donor."""
    theirs = [(key, of[key]) for of in _objects(donor) for key in of]
    mine = [(of, key) for of in _objects(value) for key in of]
    shared = sorted({key for key, _ in theirs} & {key for _, key in mine})
    if shared:
        key = draw.choice(shared)
        of, _ = draw.choice([place for place in mine if place[1] == key])
        of[key] = copy.deepcopy(draw.choice([v for name, v in theirs if name == key]))


def _merge(value: Any, draw: Random, donor: Any) -> None:
    """Add some of the donor's top-level keys, replacing existing ones or not."""
    if isinstance(value, dict) and isinstance(donor, dict):
        over = draw.random() < 0.5
        for key in draw.sample(sorted(donor), draw.randint(1, min(4, len(donor)))):
            if over or key not in value:
                value[key] = copy.deepcopy(donor[key])


def _add_key(value: Any, draw: Random, donor: Any) -> None:
    """Add a key of an object of the donor, with its value, a similar one, or junk."""
    mine, theirs = _objects(value), _objects(donor)
    if not (mine and theirs):
        return
    of = draw.choice(mine[: draw.choice((1, 1, 4, len(mine)))])
    other = draw.choice(theirs[: draw.choice((1, 4, len(theirs)))])
    key = draw.choice(list(other))
    if draw.random() < 0.1:
        key = draw.choice(REMOVED_KEYS)
    value_of_it = {key: copy.deepcopy(other.get(key))}
    if draw.random() < 0.3:
        _near(value_of_it, draw)
    elif draw.random() < 0.4:
        value_of_it[key] = copy.deepcopy(draw.choice(JUNK))
    of |= value_of_it


def _graft(value: Any, draw: Random, donor: Any) -> None:
    """Replace any value by any value of the donor."""
    place, key = _place(value, draw)
    other, at = _place(donor, draw)
    place[key] = copy.deepcopy(other[at])


def _cut(data: bytes, draw: Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _flip(data: bytes, draw: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        if changed:
            changed[draw.randrange(len(changed))] = draw.choice(b'0159-.,:;|"[]{}\x00\x1b\xff\n eE')
    return bytes(changed)


def _packed(data: bytes, draw: Random) -> bytes:
    packed = gzip.compress(data)
    return draw.choice((packed, packed[: draw.randrange(len(packed))], _flip(packed, draw)))


def _repeated(data: bytes, draw: Random) -> bytes:
    """Repeat a part of the file."""
    a, b = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
    return data[:b] + data[a:]


_VALUES: tuple[Callable[[Any, Random], None], ...] = (
    *(_junk, _junk, _drop, _transplant, _transplant, _near, _near, _swap, _rename, _numbers),
)
_BYTES: tuple[Callable[[bytes, Random], bytes], ...] = (_cut, _flip, _flip, _packed, _repeated)
_CROSSINGS: tuple[Callable[[Any, Random, Any], None], ...] = (
    *(_replace_by_key,) * 3,
    *(_merge, _add_key) * 2,
    _graft,
)
