"""Private parts of the runtime that tests use, imported in one place."""

# ruff: noqa: F401

from pipeloom.runtime.executor.deferred_linear import Linear as LinearRule
from pipeloom.runtime.executor.offload import CopyChannels
from pipeloom.runtime.graphs.module_state import ModuleState
from pipeloom.runtime.graphs.stage_functions import StageFunctions
from pipeloom.runtime.launch import processes
from pipeloom.runtime.launch.environment import Gpu, backend_of, gpu_here, own_gpu
from pipeloom.runtime.measure.device_clock import DeviceClock
from pipeloom.runtime.measure.memory_limit import over_the_limit
from pipeloom.runtime.models.architectures import CLOSING, PLANNED
from pipeloom.runtime.models.tokens import Tokens
from pipeloom.runtime.optim.norm_groups import named_axes
from pipeloom.runtime.pipeline.model_source import check_evaluation, checked_batch, most_stages
from pipeloom.runtime.probes.link_probe import LinkSamples, links_of, probe_host
from pipeloom.runtime.stages.gradient_accumulator import GradientAccumulator
from pipeloom.runtime.train.callbacks import listening
from pipeloom.runtime.train.checkpoint_reader import saved_keys
from pipeloom.runtime.transport import RankFault, making, store, timed_out
from pipeloom.runtime.transport.gloo import SHORT, GlooTransport
from pipeloom.runtime.transport.nccl import Channel as NcclChannel
from pipeloom.runtime.transport.nccl import NcclTransport
from pipeloom.runtime.transport.staged_gloo import StagedGlooTransport
