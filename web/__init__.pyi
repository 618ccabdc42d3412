from .app import application as application
from .request import ServeRequest as ServeRequest
from .server import Listening as Listening
from .server import bound as bound
from .solves import BusyError as BusyError
from .solves import Solve as Solve
from .solves import Solves as Solves
