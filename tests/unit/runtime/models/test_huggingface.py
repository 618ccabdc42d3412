"""Hugging Face models, cut between any layers: the whole model's loss, gradients, names and
weights; invalid weight files are reported, and nothing is drawn instead."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeloom import HuggingFace
from pipeloom.ir import InputError
from pipeloom.runtime import LayeredSource, load_source
from tests.support.inside import CLOSING, PLANNED, check_evaluation, most_stages

hugging = pytest.importorskip("transformers")

VOCABULARY, WIDTH, HEADS, LAYERS, POSITIONS, LENGTH = 32, 16, 4, 3, 24, 12
OLD = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
NEW = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
}
GROUPED = NEW | {"num_key_value_heads": 2}
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
DROPOUTS = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2} | dict.fromkeys(
    ("moe_intermediate_size", "shared_expert_intermediate_size"), 8
)
DEEPSEEK = dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim"), 8) | {
    "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
    "qk_rope_head_dim": 4,
}  # fmt: skip
MPT = {"d_model": WIDTH, "n_heads": HEADS, "n_layers": LAYERS, "max_seq_len": POSITIONS}
CONFIGS: dict[str, dict[str, Any]] = {
    # projections before and after the layers, in a separate decoder
    "opt": NEW | {"ffn_dim": 24, "word_embed_proj_dim": 8, "dropout": 0.0},
    # layers that return tuples, and receive positions as a tensor of slopes
    "bloom": OLD | {"hidden_size": WIDTH},
    "falcon": NEW | {"alibi": False},
    "gpt2": OLD | DROPOUTS | {"n_positions": POSITIONS},
    "gptj": OLD | DROPOUTS | {"n_positions": POSITIONS, "rotary_dim": 4},
    "mamba": {key: NEW[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers")},
    "mpt": MPT | {"vocab_size": VOCABULARY},
    "biogpt": NEW | dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
    "deepseek_v3": NEW | EXPERTS | DEEPSEEK,
    "qwen3": GROUPED | {"head_dim": 8},
    "gpt_oss": GROUPED | EXPERTS | {"head_dim": 8},
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "olmoe", "mixtral"), GROUPED | EXPERTS),
}


def saved(folder: Path, kind: str, **changed: Any) -> str:
    """The path of a configuration of this kind."""
    settings = TOKENS | CONFIGS.get(kind, GROUPED) | changed
    hugging.AutoConfig.for_model(kind, **settings).save_pretrained(folder)
    return str(folder)


def source_of(path: str, **settings: Any) -> HuggingFace:
    return HuggingFace(path, seq=LENGTH, micro_batch=2, experts="eager", **settings)


def stages_of(source: HuggingFace, dtype: torch.dtype) -> list[nn.Module]:
    """Each layer as a stage; tied parameters are one object."""
    layers = source.named_layers()
    parts = tuple((layer.name,) for layer, _ in layers)
    cut = LayeredSource(source, parts)
    modules = [stage().to(dtype) for stage in cut.stages(len(parts))]
    for (first, name), *others in cut.tied(len(parts)):
        for stage, other in others:
            path, _, last = other.rpartition(".")
            parameter = modules[first].get_parameter(name)
            setattr(modules[stage].get_submodule(path), last, parameter)
    return modules


def whole_model(source: HuggingFace, stages: list[nn.Module], dtype: torch.dtype) -> Any:
    """The model as constructed by the library, with the stages' weights under their own names."""
    config = hugging.AutoConfig.from_pretrained(source.path)
    model = hugging.AutoModelForCausalLM.from_config(config, experts_implementation="eager")
    state = {name[2:]: x for stage in stages for name, x in stage.state_dict().items()}
    model.to(dtype).load_state_dict(state)
    return model.train()


@pytest.mark.parametrize("kind", sorted((*PLANNED, *CLOSING)))
def test_loss_and_gradients_are_those_of_the_whole_model(kind: str, tmp_path: Path) -> None:
    tied = {"tie_word_embeddings": True} if kind == "llama" else {}
    source = source_of(saved(tmp_path, kind, **tied))
    stages = stages_of(source, torch.float64)
    model = whole_model(source, stages, torch.float64)
    (tokens,), (labels,) = source.batch(0, 1)
    expected = model(input_ids=tokens, labels=labels).loss
    expected.backward()
    loss = source.loss(nn.Sequential(*stages)(tokens), labels)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-8 if kind == "gptj" else 1e-12)
    found = {n[2:]: p.grad for stage in stages for n, p in stage.named_parameters()}
    near = 1e-7 if kind == "gptj" else 1e-12  # its rotation table is partly float32
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=near, atol=near)


def test_a_model_drops_out_in_training_alone(tmp_path: Path) -> None:
    """Modes are set module by module, as after an evaluation."""
    hugging.BioGptConfig(**NEW | TOKENS, hidden_dropout_prob=0.5).save_pretrained(tmp_path)
    source = source_of(str(tmp_path))
    stages = stages_of(source, torch.float32)
    model = whole_model(source, stages, torch.float32)
    (tokens,), _ = source.batch(0, 1)
    nn.Sequential(*stages)(tokens)  # makes plans
    for training in (True, False, True):
        for module in [part for stage in stages for part in stage.modules()]:
            module.training = training
        torch.manual_seed(3)
        expected = model.train(training)(input_ids=tokens).logits
        torch.manual_seed(3)
        torch.testing.assert_close(nn.Sequential(*stages)(tokens), expected)


def test_layers_and_what_they_share_have_the_models_names(tmp_path: Path) -> None:
    source = source_of(saved(tmp_path, "gpt2"))
    layers = [layer for layer, _ in source.named_layers()]
    assert [(layer.name, layer.modules) for layer in layers] == [
        ("embedding", ("transformer.wte", "transformer.wpe", "transformer.drop")),
        *((f"transformer.h.{i}", (f"transformer.h.{i}",)) for i in range(LAYERS)),
        ("head", ("transformer.ln_f", "lm_head")),
    ]
    assert source.tied_layers() == (
        (("embedding", "transformer.wte.weight"), ("head", "lm_head.weight")),
    )
    assert source.tied(2) == (((0, "0.transformer.wte.weight"), (1, "1.lm_head.weight")),)
    assert source.names(2)(1, "0.transformer.h.2.ln_1.bias") == "transformer.h.2.ln_1.bias"
    with pytest.raises(InputError, match=r"stages: expected 1 to 3, its decoder layers, got 4$"):
        source.stages(4)
    assert most_stages(source, 2) == 3


def test_drawn_weights_depend_on_the_seed_and_the_layer_alone(tmp_path: Path) -> None:
    path = saved(tmp_path, "llama")
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, other = (source_of(path).named_layers()[2][1]().state_dict() for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(one[name], other[name]) for name in one)
    changed = source_of(path, seed=1).named_layers()[2][1]().state_dict()
    name = "model.layers.1.mlp.up_proj.weight"
    assert not torch.equal(one[name], changed[name])
    next_layer = source_of(path).named_layers()[3][1]().state_dict()
    assert not torch.equal(one[name], next_layer[name.replace(".1.", ".2.")])


@pytest.mark.parametrize("kind", ["llama", "qwen2_moe", "mixtral", "gpt2"])
def test_weights_are_read_from_shards(kind: str, tmp_path: Path) -> None:
    config = hugging.AutoConfig.for_model(kind, **TOKENS | CONFIGS.get(kind, GROUPED))
    model = hugging.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    found: dict[str, Tensor] = {}
    for _, make in source_of(str(tmp_path)).named_layers():
        found |= make().state_dict()
    expected = model.state_dict()
    assert set(found) == set(expected)
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_a_cast_part_keeps_the_frequencies_of_its_rotation(tmp_path: Path) -> None:
    embedding = source_of(saved(tmp_path, "llama")).named_layers()[0][1]().to(torch.bfloat16)
    buffers = dict(embedding.named_buffers())
    assert buffers["model.rotary_emb.inv_freq"].dtype is torch.float32
    assert embedding.get_parameter("model.embed_tokens.weight").dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("changed", "settings", "why"),
    [
        ({"num_hidden_layers": "4"}, "", "config.json: .* expected int"),
        ({}, ",attention=none", "config.json: expected a causal language model: ValueError: "),
    ],
)
def test_what_the_library_refuses_is_one_line(
    changed: dict[str, Any], settings: str, why: str, tmp_path: Path
) -> None:
    """The library's messages vary; our own refusals are in ``messages/golden.txt``."""
    (tmp_path / "config.json").write_text(json.dumps(GROUPED | {"model_type": "llama"} | changed))
    with pytest.raises(InputError, match=f"^hf:{tmp_path}: {why}") as caught:
        load_source(f"hf:{tmp_path}{settings}")
    assert "\n" not in str(caught.value)


def test_without_the_library_a_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = saved(tmp_path, "llama")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"needs transformers: pip install 'pipeloom\[models\]'"):
        load_source(f"hf:{path}")


def test_settings_follow_the_path(tmp_path: Path) -> None:
    """They are passed to other processes; code in a model's folder is not run if the library has
    the model."""
    auto = {"AutoConfig": "beside.Config", "AutoModelForCausalLM": "beside.Model"}
    path = saved(tmp_path, "llama", auto_map=auto)
    found = load_source(f"hf:{path},seq=6,micro_batch=3,seed=2,lr=0.01,attention=eager")
    expected = HuggingFace(path, seq=6, micro_batch=3, seed=2, lr=0.01, attention="eager")
    assert found == expected == pickle.loads(pickle.dumps(found))
    assert len(pickle.dumps(found)) < 1000
    assert [x.shape for x in found.batch(0, 2)[0]] == [(3, 6), (3, 6)]
    assert load_source(f"hf:{path}/config.json").batch(0, 1)[0][0].shape == (1, POSITIONS)


def test_what_is_evaluated_is_no_training_data(tmp_path: Path) -> None:
    path = saved(tmp_path, "llama")
    source = HuggingFace(path)
    (one,), _ = source.eval_batch(0, 1)
    assert torch.equal(one, source.eval_batch(7, 1)[0][0])
    assert not torch.equal(one, source.batch(0, 1)[0][0])
    (tmp_path / "a.txt").write_bytes(bytes(range(32)))
    data = str(tmp_path / "a.txt")
    with pytest.raises(InputError, match=r"eval_data: missing; expected a file, as data is one$"):
        check_evaluation(HuggingFace(path, data=data))
    (found,), _ = HuggingFace(path, data=data, eval_data=data).eval_batch(0, 1)
    assert torch.equal(found[0, 1:] - found[0, :-1], torch.ones(POSITIONS - 1).long())


NAME = "model.layers.1.mlp.up_proj.weight"
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hugging.LlamaForCausalLM(hugging.LlamaConfig(**GROUPED)).save_pretrained(tmp_path)
    return tmp_path


def state_of(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = pytest.importorskip("safetensors.torch").load_file(
        folder / "model.safetensors"
    )
    return found


def fault_of(folder: Path) -> str:
    source = HuggingFace(str(folder))
    with pytest.raises(InputError) as caught:
        block(source)
    return str(caught.value).removeprefix(f"hf:{folder}: ")


def block(source: HuggingFace) -> nn.Module:
    source.check()
    return source.named_layers()[2][1]()


def write(folder: Path, state: dict[str, Tensor]) -> None:
    pytest.importorskip("safetensors.torch").save_file(state, folder / "model.safetensors")


def test_missing_weights_are_named(folder: Path) -> None:
    state = state_of(folder)
    del state[NAME]
    write(folder, state)
    assert fault_of(folder) == f"expected {NAME} in its weights"
    write(folder, state | {NAME: torch.zeros(3, 5)})
    assert fault_of(folder) == f"{NAME}: expected shape [24, 16], got [3, 5]"


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        (FILE, "no", f"{FILE}: expected a file of weights: "),
        (INDEX, json.dumps({"weight_map": {NAME: "2.safetensors"}}), "2.safetensors: expected a f"),
        (INDEX, "{}", f"{INDEX}: expected a weight_map: "),
    ],
)
def test_a_file_that_holds_no_weights_is_named(
    folder: Path, file: str, text: str, line: str
) -> None:
    (folder / file).write_text(text)
    assert fault_of(folder).startswith(line)


def test_weights_in_another_format_are_not_drawn_instead(folder: Path) -> None:
    (folder / FILE).rename(folder / "pytorch_model.bin")
    assert fault_of(folder) == f"expected weights in {FILE} or {INDEX}, found pytorch_model.bin"


def test_a_checkpoint_of_the_base_model_has_its_prefix_added(folder: Path) -> None:
    state = {name.removeprefix("model."): value for name, value in state_of(folder).items()}
    write(folder, state)
    found = block(HuggingFace(str(folder))).state_dict()
    assert torch.equal(found[NAME], state[NAME.removeprefix("model.")])
