"""A GPU's multiprocessors divided, over a driver that is made up."""
# ruff: noqa: N802 (the driver's own names)

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from pipeloom.runtime.launch.sm_partitions import NoPartitionsError, _Resource, split


class Driver:
    """Divides ``multiprocessors`` as the real one does: by ``granularity``, rounding up."""

    def __init__(self, multiprocessors: int, granularity: int) -> None:
        self.multiprocessors, self.granularity = multiprocessors, granularity
        self.contexts: dict[
            int, int
        ] = {}  # by the green context, the first multiprocessor of its part
        self.streams: dict[int, int] = {}

    def cuDeviceGet(self, device: Any, index: Any) -> int:
        device._obj.value = 40 + index.value
        return 0

    def cuDeviceGetDevResource(self, device: Any, resource: Any, kind: Any) -> int:
        assert (device.value, kind.value) == (41, 1)
        resource._obj.type, resource._obj.count = 1, self.multiprocessors
        return 0

    def cuDevSmResourceSplitByCount(
        self, groups: Any, number: Any, whole: Any, rest: Any, flags: Any, least: Any
    ) -> int:
        size = -(-least.value // self.granularity) * self.granularity
        made = min(number._obj.value, whole._obj.count // size)
        if made == 0:
            return 914
        for i in range(made):
            groups[i].type, groups[i].count = 1, size
            groups[i].rest[0] = i  # where the part lies
        rest._obj.count = whole._obj.count - made * size
        number._obj.value = made
        return flags.value

    def cuDevResourceGenerateDesc(self, description: Any, resource: Any, count: Any) -> int:
        assert count.value == 1
        description._obj.value = 100 + resource._obj.rest[0]
        return 0

    def cuGreenCtxCreate(self, context: Any, description: Any, device: Any, flags: Any) -> int:
        assert (device.value, flags.value) == (41, 1)
        context._obj.value = 100 + description.value
        self.contexts[context._obj.value] = description.value - 100
        return 0

    def cuGreenCtxStreamCreate(self, stream: Any, context: Any, flags: Any, priority: Any) -> int:
        assert (flags.value, priority.value) == (1, 0)
        stream._obj.value = 100 + context.value
        self.streams[stream._obj.value] = self.contexts[context.value]
        return 0


@pytest.mark.parametrize(
    ("parts", "each", "left"), [(1, 132, 0), (2, 64, 4), (4, 32, 4), (8, 16, 4), (16, 8, 4)]
)
def test_all_parts_come_from_one_split_and_are_as_large_as_can_be(
    parts: int, each: int, left: int
) -> None:
    driver = Driver(132, granularity=4 if parts == 1 else 8)
    handles, found, rest = split(driver, 1, parts)
    assert (found, rest) == (each, left)
    assert [driver.streams[handle] for handle in handles] == list(range(parts))


def test_too_few_multiprocessors() -> None:
    with pytest.raises(
        NoPartitionsError, match="12 multiprocessors cannot be divided into 2 parts"
    ):
        split(Driver(12, granularity=8), 1, 2)


def test_a_driver_without_green_contexts() -> None:
    with pytest.raises(NoPartitionsError, match="the CUDA driver has no cuDeviceGet"):
        split(object(), 1, 2)


def test_the_drivers_error_is_named() -> None:
    driver = Driver(132, granularity=8)
    driver.cuGreenCtxCreate = lambda *arguments: 801  # type: ignore[method-assign]
    with pytest.raises(NoPartitionsError, match="cuGreenCtxCreate: the CUDA driver's error 801"):
        split(driver, 1, 2)


def test_a_resource_is_laid_out_as_in_the_drivers_header() -> None:
    assert ctypes.sizeof(_Resource) == 144
    assert _Resource.count.offset == 96
