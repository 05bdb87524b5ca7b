"""The axes of a user's arrays: which of them are channels, length, depth, height and width.

`layout` says it. Without it, shapes that are obvious are read as such, and for the others `layout` is asked for.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from orchard.errors import UserError

Layout = Literal["features", "signal", "image", "image-channels-first", "image-channels-last", "volume"]

SAMPLES: Mapping[Layout, tuple[str, ...]] = {
    "features": ("features",),
    "signal": ("length", "channels×length"),
    "image": ("height×width",),
    "image-channels-first": ("channels×height×width",),
    "image-channels-last": ("height×width×channels",),
    "volume": ("depth×height×width", "channels×depth×height×width"),
}
"""What one sample of each layout can be."""
CHANNELS = (1, 2, 3, 4)
"""Grey or colour, each with transparency or without; an axis of such a length is taken for the channels."""
LONGEST_SIDE = 2
"""How many times as long as its shorter side an image of floats may be; what is longer may be a signal."""


def channels_first(x: NDArray[Any], layout: Layout | None, place: str) -> NDArray[Any]:
    """Return samples with their channels in front, one channel if they have none; features have no channels."""
    layout = layout or _obvious_layout(x, place)
    if layout is None:
        return x
    possible = SAMPLES[layout]
    found = next((axes for axes in possible if len(axes.split("×")) == x.ndim - 1), None)
    if found is None:
        expected = " or ".join(f"n×{axes}" for axes in possible)
        raise UserError(f'{place}: layout = "{layout}" is for {expected}, not for an array of shape {x.shape}')
    if layout == "image-channels-last":
        return x.transpose(0, 3, 1, 2)
    return x if layout == "features" or "channels" in found else x[:, None]


def _obvious_layout(x: NDArray[Any], place: str) -> Layout | None:
    """Return the layout that a shape tells; None if there are so many axes that only the user's model knows them."""
    sides = x.shape[1:]
    if len(sides) == 1:
        return "features"
    if len(sides) == 2:
        if x.dtype == np.uint8 or max(sides) <= LONGEST_SIDE * min(sides):
            return "image"
        raise _ask(x, place, "signal", "image")
    if len(sides) == 3:
        first, last = sides[0] in CHANNELS, sides[2] in CHANNELS
        if first and last:
            raise _ask(x, place, "image-channels-first", "image-channels-last")
        if not first and not last:
            raise _ask(x, place, "image-channels-first", "image-channels-last", "volume")
        return "image-channels-first" if first else "image-channels-last"
    return "volume" if len(sides) == 4 else None


def _ask(x: NDArray[Any], place: str, *layouts: Layout) -> UserError:
    choices = [f'"{layout}" ({next(a for a in SAMPLES[layout] if a.count("×") == x.ndim - 2)})' for layout in layouts]
    options = f"{', '.join(choices[:-1])} or {choices[-1]}"
    return UserError(f"{place}: the shape {x.shape} can be read in several ways; set layout = {options}")
