"""Presets hold published peaks; a cluster file gives what a preset does, and faults in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeloom.planner import parse_cluster
from pipeloom.planner.clusters.cluster import LINKS, NODES
from pipeloom.planner.clusters.efficiency import BOUNDS
from pipeloom.planner.clusters.gpus import GPUS
from tests.support.inner import preset, read_cluster

FILE: dict[str, Any] = {
    "format": "pipeloom.cluster",
    "version": 1,
    "name": "ours",
    "gpu": "H100",
    "gpus_per_node": 4,
    "inside": "pcie5-x16",
    "between": {"latency": 0.03, "gigabytes_per_second": 12.5},
}


@pytest.mark.parametrize("name", [*NODES, *GPUS, "A100", "4090", "h100-80GB"])
def test_presets_are_whole_and_read_back_as_files(name: str) -> None:
    cluster = read_cluster(name)
    assert parse_cluster(json.loads(json.dumps(cluster.to_dict())), "file") == cluster
    assert cluster.gpu.source
    reached = cluster.efficiency.to_dict()
    assert all(0 < reached[key] <= most for key, most in BOUNDS.items())


def test_published_peaks() -> None:
    h100, a100, gb200 = preset("dgx-h100"), preset("dgx-a100"), preset("gb200-nvl72")
    assert (h100.gpu.peak("bf16"), h100.gpu.peak("fp8"), h100.gpu.peak("fp4")) == (989, 1979, 1979)
    assert (a100.gpu.peak("fp8"), a100.gpu.gigabytes_per_second) == (312, 2039)
    assert h100.inside == LINKS["nvlink4"]
    assert h100.between.gigabytes_per_second == 400 / 8
    assert (gb200.gpus_per_node, gb200.gpu.peak("fp4")) == (72, 10000)
    hosts = [preset(name).host for name in ("H100", "GH200", "GB200")]
    assert [host and host.gigabytes_per_second for host in hosts] == [63, 450, 225]


def test_file_takes_presets_and_a_calibration_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(FILE | {"efficiency": {"gemm": 0.5, "shapes": {"dense": 1.1}}}))
    cluster = read_cluster(path)
    assert cluster.gpu == GPUS["H100"]
    assert cluster.inside == LINKS["pcie5-x16"]
    assert cluster.host is None
    assert parse_cluster(FILE | {"host": "pcie5-x16"}, "file").host == LINKS["pcie5-x16"]
    assert (cluster.efficiency.gemm, cluster.efficiency.shapes) == (0.5, {"dense": 1.1})
    assert cluster.efficiency.memory == preset("H100").efficiency.memory


@pytest.mark.parametrize("name", ["A100", "a100-80gb", "A100 80GB"])
def test_a_file_names_a_gpu_as_an_option_does(name: str) -> None:
    assert parse_cluster(FILE | {"gpu": name}, "file").gpu == preset(name).gpu == GPUS["A100-80GB"]


def test_names_of_links_are_taken_as_they_are_said_and_a_near_one_is_told() -> None:
    assert parse_cluster(FILE | {"inside": "NVLink 4"}, "file").inside == LINKS["nvlink4"]
