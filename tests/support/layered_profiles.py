"""Profiles by layers: an embedding, blocks, a head and a loss."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from pipeloom.ir import Layer, LayeredProfile, LayerKind, Placement, Profile, StageProfile

AMOUNT = st.sampled_from([0.5, 1.0, 2.0, 3.0])


def layer(name: str, kind: LayerKind, *times_and_sizes: float) -> StageProfile:
    return StageProfile(*times_and_sizes, layers=(Layer(name, kind, (name,)),))


def model(blocks: int, cluster: Profile, head: float = 3.0) -> LayeredProfile:
    """A light embedding, ``blocks`` equal blocks, a heavy head, and a loss.

    Blocks have T_F = T_B = T_W = 1, M_B = 1 and M_W = 0.5.
    """
    layers = (
        layer("emb", LayerKind.EMBEDDING, 0.25, 0.0, 0.5, 0.25, 0.25),
        *(layer(f"layers.{i}", LayerKind.BLOCK, 1.0, 1.0, 1.0, 1.0, 0.5) for i in range(blocks)),
        layer("out", LayerKind.HEAD, head, head, head, 1.0, 0.25),
        layer("loss", LayerKind.LOSS, 0.5, 0.5, 0.0, 1.0, 0.0),
    )
    return LayeredProfile(layers, (False,) * len(layers), cluster)


@st.composite
def layered(draw: st.DrawFn, most_ranks: int, most_layers: int) -> LayeredProfile:
    """A random profile with any times; some have tied layers, a memory limit, or a device limit."""
    ranks = draw(st.integers(1, most_ranks))
    number = draw(st.integers(2 * ranks, max(2 * ranks, most_layers)))
    layers = []
    for i in range(number):
        t_f, t_b, t_w, m_b, weight = (draw(AMOUNT) for _ in range(5))
        m_w = m_b * draw(st.sampled_from([0.0, 0.5, 1.0]))
        kind = LayerKind.EMBEDDING if i == 0 else LayerKind.BLOCK
        layers.append(
            StageProfile(t_f, t_b, t_w, m_b, m_w, 1.0, weight, layers=(Layer(str(i), kind),))
        )
    tied = draw(st.lists(st.booleans(), min_size=number - 1, max_size=number - 1))
    loose = [t and sum(tied[:i]) < number - 2 * ranks for i, t in enumerate(tied)]
    total = sum(stage.m_b for stage in layers)
    limit = draw(st.sampled_from([None, 0.6, 1.0, 2.0]))
    device = draw(st.sampled_from([None, 1.0, 2.0]))
    cluster = Profile(
        (),
        ranks,
        draw(st.sampled_from([0.0, 0.5, 2.0])),
        memory_limit=None if limit is None else (limit * total,) * ranks,
        device_memory=None if device is None else (device * total,) * ranks,
    )
    return LayeredProfile(tuple(layers), (*loose, False), cluster)


def with_ends(profile: LayeredProfile) -> LayeredProfile:
    """Make the first layer an embedding and the last one a head, as Megatron requires."""
    first, *others, last = profile.layers
    return replace(profile, layers=(_as(first, "EMBEDDING"), *others, _as(last, "HEAD")))


def equal_blocks(number: int) -> LayeredProfile:
    """Equal layers on two ranks, without message delays."""
    blocks = model(number, Profile((), 2)).layers[1:-2]
    return with_ends(LayeredProfile(blocks, (False,) * number, Profile((), 2, 0.0)))


def _as(stage: StageProfile, kind: str) -> StageProfile:
    return replace(stage, layers=(replace(stage.layers[0], kind=LayerKind[kind]),))


def placement(name: str, ranks: int) -> Placement:
    if name == "linear":
        return Placement.linear(ranks)
    return Placement.v(ranks) if name == "v" else Placement.interleaved(ranks, 2)
