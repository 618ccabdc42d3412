"""Names that the parameters of stages have in the whole model."""

from __future__ import annotations

from contextlib import suppress

from .options import ModelNames

WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # torch.compile's, and checkpointing's


def unwrapped(name: str) -> str:
    """A parameter's name without those of the wrappers around modules."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def model_name(names: ModelNames | None, stage: int, name: str) -> str:
    """The model's name of a stage's ``name``; itself where ``names`` fails."""
    own = unwrapped(name)
    with suppress(Exception):
        return own if names is None else str(names(stage, own))
    return own
