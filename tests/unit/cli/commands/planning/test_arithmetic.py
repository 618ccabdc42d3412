"""``predict`` without a GPU: the tables of a model's arithmetic, their JSON, and wrong input."""

from __future__ import annotations

from tests.support.command_line import Command


def test_llama_2_70b_by_one_command(pipeloom: Command) -> None:
    out = pipeloom("predict", "llama-2-70b", "--micro-batch", 8).out
    rows = {line.split("  ")[0]: line.split()[1:3] for line in out.splitlines() if line}
    assert [rows[name] for name in ("parameters", "gradients", "optimizer", "activations")] == [
        ["140", "G"],
        ["140", "G"],
        ["840", "G"],
        ["730.1", "G"],
    ]
    assert rows["devices"][0] == "24"
    assert "80 layers, so at most as many stages" in out


def test_json_has_all_of_it(pipeloom: Command) -> None:
    found = pipeloom("predict", "gpt2", "--gpus", 2, "--pp", 2, "--json").json
    assert found["parameters"] == 124_439_808
    assert [stage["layers"] for stage in found["stages"]] == [7, 7]
    assert {need["name"] for need in found["links"]} <= {"pipeline", "tensor", "fsdp"}
