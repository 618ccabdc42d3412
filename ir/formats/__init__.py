"""Profiles, schedules and programs as files; the formats are in ``docs/formats.md``."""

from .atomic_write import check_writable, write_json, write_text
from .cluster_document import PROFILE
from .profile_json import doubtful_keys, dump_profile, finite, load_profile, parse_profile
from .program_json import dump_program, load_program, parse_program
from .schedule_document import PROGRAM, SCHEDULE
from .schedule_json import dump_schedule, load_schedule, parse_schedule

__all__ = [
    "PROFILE",
    "PROGRAM",
    "SCHEDULE",
    "check_writable",
    "doubtful_keys",
    "dump_profile",
    "dump_program",
    "dump_schedule",
    "finite",
    "load_profile",
    "load_program",
    "load_schedule",
    "parse_profile",
    "parse_program",
    "parse_schedule",
    "write_json",
    "write_text",
]
