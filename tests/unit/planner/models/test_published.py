"""Published formulas as special cases of the sums over layers, to the digit."""

from __future__ import annotations

import pytest

from pipeloom.planner import ModelWork
from tests.support.inner import OpKind, TrainingRun, WorkKind, read_model, states_of, work_of

S, H, A, LAYERS, V = 2048, 12288, 96, 96, 51200  # GPT-3


def gpt_3(**keys: object) -> ModelWork:
    model = read_model("gpt-175b")
    given = {"seq": S, "precision": "fp16", "attention": "unfused", **keys}
    return work_of(model, TrainingRun.of(given, model))


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("tp", "sequence_parallel"), [(1, False), (8, False), (8, True)])
@pytest.mark.parametrize("sequences", [1, 4])
def test_activations_of_a_layer_are_korthikantis(
    recompute: str, tp: int, sequence_parallel: bool, sequences: int
) -> None:
    """Equations 1 to 5 and table 2: s b h (34 + 5 a s / h) and its divided forms."""
    work = gpt_3(
        tp=tp, sequence_parallel=sequence_parallel, recompute=recompute, micro_batch=sequences
    )
    expected = layer_activation_bytes(
        S, sequences, H, A, t=tp, sequence_parallel=sequence_parallel, recompute=recompute
    )
    assert work.layers[1].m_b == expected


@pytest.mark.parametrize("tp", [1, 8])
def test_activations_of_the_ends_are_korthikantis(tp: int) -> None:
    """Section 4.3: the mask of the embedding's dropout, and norm, head and loss."""
    embedding, *_, head = gpt_3(tp=tp, micro_batch=2).layers
    assert embedding.m_b == S * 2 * H / tp
    assert head.m_b == end_activation_bytes(S, 2, H, V, t=tp)


def test_flash_attention_holds_no_matrix_but_a_number_a_row() -> None:
    work = gpt_3(attention="flash")
    rows = 4 * A * S
    expected = layer_activation_bytes(S, 1, H, A, recompute="selective")
    assert work.layers[1].m_b == expected + rows


def test_flops_of_an_iteration_are_those_of_both_papers() -> None:
    def flops(work: ModelWork, *ops: OpKind) -> float:
        return sum(layer.flops(op) for layer in work.layers for op in ops)

    forward_and_back = flops(gpt_3(), OpKind.F, OpKind.B, OpKind.W)
    sizes = {"layers": LAYERS, "v": V}
    assert forward_and_back == pytest.approx(iteration_flops(S, 1, H, **sizes), rel=1e-12)
    again = flops(gpt_3(recompute="full"), *OpKind)
    expected = iteration_flops(S, 1, H, **sizes, recompute="full")
    assert again == pytest.approx(expected, rel=1e-12)


def test_what_waits_for_w_is_the_zero_bubble_papers_32_of_34() -> None:
    layer = gpt_3(recompute="selective").layers[1]
    assert (layer.m_b, layer.m_w) == (34 * S * H, 32 * S * H)


def test_parameters_of_a_gpt() -> None:
    """12 l h^2 (1 + 13 / 12h + (v + s) / 12lh), of Narayanan et al., 2021, equation 2, and the last
    norm's 2 h."""
    found = sum(layer.parameters.total for layer in gpt_3().layers)
    assert found == 12 * LAYERS * H**2 + 13 * LAYERS * H + (V + S) * H + 2 * H


def test_tensor_parallel_collectives_of_a_layer_are_megatrons() -> None:
    """Two all-reduces each way (Shoeybi et al., 2019, figure 4); with sequence parallelism as many
    bytes, and for W an all-gather of each half's input more (Korthikanti et al., section 4.2.2)."""
    plain, divided = (gpt_3(tp=8, sequence_parallel=each).layers[1] for each in (False, True))
    assert plain.kind is divided.kind is WorkKind.DENSE
    ops = (OpKind.F, OpKind.B, OpKind.W)
    one = 2 * S * H * 7 / 8  # what leaves a rank in a gather or a scatter
    assert [_wire(plain, op) for op in ops] == [4 * one, 4 * one, 0]
    assert [_wire(divided, op) for op in ops] == [4 * one, 4 * one, 2 * one]


def _wire(layer: object, op: OpKind) -> float:
    kernels = layer.of(op)  # type: ignore[attr-defined]
    return sum(getattr(kernel, "wire_bytes", 0) for kernel in kernels)


GIB = 2**30
# GiB of all decoder layers as Korthikanti et al. computed them for the runs that they measured
PUBLISHED_ACTIVATIONS = [
    ("gpt-22b", {"micro_batch": 4}, "none", False, 1.0, 59.3),
    ("gpt-22b", {"micro_batch": 4}, "selective", True, 1.0, 9.6),
    ("gpt-530b", {"pp": 35, "vp": 3}, "none", False, 1 + 34 / 105, 114.0),
    ("gpt-530b", {"pp": 35, "vp": 3}, "selective", True, 1 + 34 / 105, 23.1),
]


@pytest.mark.parametrize(
    ("preset", "keys", "recompute", "divided", "in_flight", "gib"), PUBLISHED_ACTIVATIONS
)
def test_activations_of_measured_runs(
    preset: str, keys: dict[str, int], recompute: str, divided: bool, in_flight: float, gib: float
) -> None:
    """With interleaving a first stage holds (1 + (p - 1) / (p m)) l layers' (section 4.2.3)."""
    model = read_model(preset)
    given = {"tp": 8, "seq": 2048, "attention": "unfused", "recompute": recompute, **keys}
    layer = work_of(model, TrainingRun.of(given | {"sequence_parallel": divided}, model)).layers[1]
    assert in_flight * model.layers * layer.m_b / GIB == pytest.approx(gib, abs=0.051)


@pytest.mark.parametrize(
    ("preset", "ranks", "gib"), [("gpt-22b", 8, 45.6), ("gpt-530b", 280, 31.6)]
)
def test_states_of_measured_runs(preset: str, ranks: int, gib: float) -> None:
    """18 bytes for each parameter of decoder layers, gradients in float32."""
    model = read_model(preset)
    run = TrainingRun.of({}, model)
    layer = states_of(work_of(model, run).layers[1].parameters, run)
    assert layer.kept * model.layers / ranks / GIB == pytest.approx(gib, abs=0.06)


def layer_activation_bytes(
    s: int,
    b: int,
    h: int,
    a: int,
    *,
    t: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> float:
    """Activations of one layer of a GPT with dropout (Korthikanti et al., 2022, equations 1 to 5,
    table 2).

    ``none``: s b h (34 + 5 a s / h); ``selective``, or flash attention: without the second term;
    ``full``: 2 s b h. Divided over t ranks: with sequence parallelism all of it, else all but 10
    s b h.
    """
    pairs = 5 * a * s / h if recompute == "none" else 0.0
    if recompute == "full":
        return 2.0 * s * b * h / (t if sequence_parallel else 1)
    if sequence_parallel:
        return s * b * h * (34 + pairs) / t
    return s * b * h * (10 + (24 + pairs) / t)


def end_activation_bytes(s: int, b: int, h: int, v: int, *, t: int = 1) -> float:
    """Activations of the last norm, head and loss: 4 s b h / t (1 + v / h) (Korthikanti et al.,
    2022, section 4.3)."""
    return 4.0 * s * b * h / t * (1 + v / h)


def iteration_flops(
    s: int, batch: int, h: int, *, layers: int, v: int, recompute: str = "none"
) -> float:
    """FLOPs of an iteration of a GPT, all pairs of positions counted.

    ``none``: 72 B l s h^2 (1 + s / 6h + v / 12hl), the model's (Korthikanti et al., 2022,
    appendix A); ``full``: 96 B s l h^2 (1 + s / 6h + v / 16lh) (Narayanan et al.,
    2021, equation 3).
    """
    if recompute == "full":
        return 96.0 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    return 72.0 * batch * layers * s * h**2 * (1 + s / (6 * h) + v / (12 * h * layers))
