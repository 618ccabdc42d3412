"""Files of profiles, schedules and programs; ``docs/formats.md`` describes the formats."""

from .atomic_write import check_writable as check_writable
from .atomic_write import write_json as write_json
from .atomic_write import write_text as write_text
from .profile_document import PROFILE as PROFILE
from .profile_json import doubtful_keys as doubtful_keys
from .profile_json import dump_profile as dump_profile
from .profile_json import finite as finite
from .profile_json import load_profile as load_profile
from .profile_json import parse_profile as parse_profile
from .program_json import dump_program as dump_program
from .program_json import load_program as load_program
from .program_json import parse_program as parse_program
from .schedule_document import PROGRAM as PROGRAM
from .schedule_document import SCHEDULE as SCHEDULE
from .schedule_json import dump_schedule as dump_schedule
from .schedule_json import load_schedule as load_schedule
from .schedule_json import parse_schedule as parse_schedule
