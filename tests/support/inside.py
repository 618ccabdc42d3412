"""The parts of the runtime that have no public name and that tests ask, in one place."""

# ruff: noqa: F401, PLC0414

from pipeloom.runtime.executor.deferred_linear import Linear as LinearRule
from pipeloom.runtime.executor.offload import DeviceChannels as DeviceChannels
from pipeloom.runtime.launch.environment import Gpu as Gpu
from pipeloom.runtime.launch.environment import backend_of as backend_of
from pipeloom.runtime.launch.environment import gpu_here as gpu_here
from pipeloom.runtime.launch.environment import own_gpu as own_gpu
from pipeloom.runtime.measure.device_clock import DeviceClock as DeviceClock
from pipeloom.runtime.measure.plan_deviation import over_the_limit as over_the_limit
from pipeloom.runtime.measure.plan_deviation import why_far_off as why_far_off
from pipeloom.runtime.models.architectures import CLOSING as CLOSING
from pipeloom.runtime.models.architectures import PLANNED as PLANNED
from pipeloom.runtime.models.tokens import Tokens as Tokens
from pipeloom.runtime.optim.norm_groups import Processes as Processes
from pipeloom.runtime.optim.norm_groups import Side as Side
from pipeloom.runtime.optim.norm_groups import assigned as assigned
from pipeloom.runtime.optim.norm_groups import check_sides as check_sides
from pipeloom.runtime.pipeline.model_source import check_evaluation as check_evaluation
from pipeloom.runtime.pipeline.model_source import checked_batch as checked_batch
from pipeloom.runtime.pipeline.model_source import most_stages as most_stages
from pipeloom.runtime.probes.link_probe import LinkSamples as LinkSamples
from pipeloom.runtime.probes.link_probe import links_of as links_of
from pipeloom.runtime.probes.link_probe import probe_host as probe_host
from pipeloom.runtime.stages.flat_parameters import Layout as Layout
from pipeloom.runtime.stages.gradient_accumulator import GradientAccumulator as GradientAccumulator
from pipeloom.runtime.train.callbacks import listening as listening
from pipeloom.runtime.train.checkpoint_reader import saved_keys as saved_keys
from pipeloom.runtime.transport.gloo import GlooTransport as GlooTransport
from pipeloom.runtime.transport.nccl import Channel as NcclChannel
from pipeloom.runtime.transport.nccl import NcclTransport as NcclTransport
from pipeloom.runtime.transport.staged_gloo import StagedGlooTransport as StagedGlooTransport
