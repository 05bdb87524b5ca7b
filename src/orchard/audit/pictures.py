"""What was recovered, as a picture: true samples above, what was made of a step below."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from orchard.audit.rehearsal import Recovered

GAP = 4
"""Pixels between pictures."""
LEAST = 84
"""Small images are enlarged to at least so many pixels a side."""


def picture_of(found: Sequence[Recovered]) -> Image.Image | None:
    """Return the picture of all batches, one beside the other; None if the samples are no images."""
    if not found or found[0].true.dim() != 4 or found[0].true.shape[1] not in (1, 3):
        return None
    true, made = (torch.cat([getattr(one, name) for one in found]) for name in ("true", "found"))
    low, high = float(true.min()), float(true.max())
    rows = [torch.cat([_framed((x - low) / max(high - low, 1e-12)) for x in part], dim=2) for part in (true, made)]
    pixels = torch.cat(rows, dim=1).clamp(0, 1).mul(255).round().to(torch.uint8)
    image = pixels.permute(1, 2, 0).contiguous().numpy()
    drawn = Image.fromarray(image if image.shape[2] == 3 else np.ascontiguousarray(image[:, :, 0]))
    times = max(1, -(-LEAST // max(true.shape[2:])))
    return drawn.resize((drawn.width * times, drawn.height * times), Image.Resampling.NEAREST)


def _framed(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (GAP // 2,) * 4, value=1.0)
