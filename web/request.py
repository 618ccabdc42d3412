"""The options of ``pipeloom serve``. This module imports nothing that loads slowly."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pipeloom.ir.errors import PipeloomError
from pipeloom.planner.requests.fields import Request, option
from pipeloom.planner.requests.kinds import ANY, whole

if TYPE_CHECKING:
    from .server import Listening


@dataclass(frozen=True, kw_only=True)
class ServeRequest(Request):
    """The address at which the server listens, and whether the page is opened."""

    host: str = option("ADDRESS", ANY, default="127.0.0.1")
    """address at which to listen, 127.0.0.1 by default, which only this machine can reach"""
    port: int | None = option("N", whole(0, 65535))
    """port, by default the first free one from 8080 on; 0 takes any free port"""
    open: bool = option(default=False)
    """open the page in a browser"""

    def listen(self) -> Listening:
        """Start to listen. Raises PipeloomError without the extra ``web``, and InputError if this
        machine does not have the address or the port is in use."""
        if not all(map(find_spec, ("starlette", "uvicorn"))):
            how = "pip install 'pipeloom[web]' (in a checkout: pip install '.[web]')"
            raise PipeloomError(f"serve needs starlette and uvicorn: {how}")
        from .server import bound

        return bound(self.host, self.port)
