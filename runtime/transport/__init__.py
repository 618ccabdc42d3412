"""Transports, which send tensors between ranks: one small interface, one file per transport."""

from .base import Handle as Handle
from .base import Routes as Routes
from .base import Transport as Transport
from .base import clock_offset as clock_offset
from .connect import connect as connect
from .connect import whereabouts as whereabouts
from .faults import Faults as Faults
from .faults import RankFault as RankFault
from .faults import agreed as agreed
from .faults import end_all as end_all
from .faults import ending_together as ending_together
from .faults import gathered as gathered
from .faults import wait_for as wait_for
from .making import faults_under_way as faults_under_way
from .making import gather_early as gather_early
from .making import made_together as made_together
from .making import new_group as new_group
from .process_group import GroupTransport as GroupTransport
from .store import timed_out as timed_out
