"""Presets hold published peaks; a cluster file is equivalent to a preset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeloom.planner import Efficiency, parse_cluster, preset, read_cluster
from tests.conformance.messages.files import cluster


@pytest.mark.parametrize(
    "name", ["dgx-h100", "gb200-nvl72", "A100", "4090", "h100-80GB", "MI355X", "V100", "GH200"]
)
def test_presets_are_read_back_as_files(name: str) -> None:
    found = read_cluster(name)
    assert parse_cluster(json.loads(json.dumps(found.to_dict())), "file") == found
    assert found.gpu.source
    assert (found.efficiency == Efficiency()) is (name in {"4090", "MI355X", "V100"})


def test_published_peaks() -> None:
    h100, a100, gb200 = preset("dgx-h100"), preset("dgx-a100"), preset("gb200-nvl72")
    assert (h100.gpu.peak("bf16"), h100.gpu.peak("fp8"), h100.gpu.peak("fp4")) == (989, 1979, 1979)
    assert (a100.gpu.peak("fp8"), a100.gpu.gigabytes_per_second) == (312, 2039)
    assert (h100.inside.gigabytes_per_second, h100.between.gigabytes_per_second) == (450, 400 / 8)
    assert (gb200.gpus_per_node, gb200.gpu.peak("fp4")) == (72, 10000)


def test_a_file_takes_presets_and_a_calibration_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(cluster(efficiency={"gemm": 0.5, "shapes": {"dense": 1.1}})))
    found, usual = read_cluster(path), preset("H100")
    assert (found.gpu, found.inside.gigabytes_per_second) == (usual.gpu, 63)
    assert (found.efficiency.gemm, found.efficiency.shapes) == (0.5, {"dense": 1.1})
    assert found.efficiency.memory == usual.efficiency.memory
