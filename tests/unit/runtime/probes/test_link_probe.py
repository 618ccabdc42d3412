"""From the times of messages to links."""

from __future__ import annotations

import pytest
import torch

from pipeloom.ir import Link
from pipeloom.runtime.probes.host_probe import probe_host
from pipeloom.runtime.probes.link_probe import LinkSamples, link_of, links_of

MEGABYTE = 1_000_000


def measured(ranks: tuple[int, int], small: float, large: float) -> LinkSamples:
    return LinkSamples(ranks, MEGABYTE, [small] * 5, [large / 2, large, large, large, large * 9])


def test_latency_and_bandwidth_from_small_and_large_messages() -> None:
    links = links_of([measured((0, 1), 0.5, 1.5), measured((1, 2), 0.5, 1.5)])
    assert links.default == Link(0.5, pytest.approx(1.0))  # 1 MB in the 1 ms beyond the latency
    assert links.default.delay(MEGABYTE) == pytest.approx(1.5)
    assert links.pairs == ()


def test_a_much_slower_pair_is_named() -> None:
    alike = [measured(pair, 0.1, 1.1) for pair in ((0, 1), (2, 3), (0, 3))]
    links = links_of([*alike, measured((1, 2), 2.0, 4.0)])
    assert links.delays(MEGABYTE, 4)[0, 1] == pytest.approx(1.1)
    ((a, b, slow),) = links.pairs
    assert (a, b) == (1, 2)
    assert slow == Link(2.0, pytest.approx(0.5))


def test_a_large_message_that_seems_faster_than_a_small_one_keeps_its_time() -> None:
    link = links_of([measured((0, 1), 2.0, 1.0)]).default
    assert link.delay(MEGABYTE) == pytest.approx(1.0)
    assert 0.99 < link.latency < 1.0


def test_latency_is_no_more_than_what_an_activation_took() -> None:
    links = links_of([measured((0, 1), 1.0, 2.0)], most=0.25)
    assert links.default.latency == 0.25
    assert links.default.delay(MEGABYTE) == pytest.approx(2.0)


def test_copies_to_the_host_make_a_link() -> None:
    samples = probe_host(torch.device("cpu"), 3, rank=1)
    assert (samples.ranks, samples.size) == ((1, 1), 1 << 23)
    assert len(samples.small) == len(samples.large) == 3
    assert link_of([samples]).gigabytes_per_second > 0
