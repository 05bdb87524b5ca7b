"""The user's own images in folders, whichever their layout and their task."""

from collections.abc import Sequence
from pathlib import Path

import torch

from orchard.data.folders import folder_kind, has_masks, subfolders
from orchard.data.image_folders import class_names, read_classes
from orchard.data.medical.masks import read_masked
from orchard.data.samples import Samples
from orchard.errors import UserError
from orchard.experiment import Experiment
from orchard.tasks.classification import Classification
from orchard.tasks.segmentation import Segmentation
from orchard.tasks.task import Task

PARTS = ("train", "val", "test")


def part_folders(folder: Path, volumes: bool) -> dict[str, Path]:
    """Return the folders of the parts train, val and test; a folder without parts is all for training."""
    if folder_kind(folder, volumes) == "whole":
        return {"train": folder}
    homes = {path.name: path for path in subfolders(folder, volumes)}
    if strange := homes.keys() - set(PARTS):
        raise UserError(f"{folder}: expected only 'train', 'val' and 'test', not {sorted(strange)}")
    return homes


def read_folders(
    homes: Sequence[Path], experiment: Experiment, agreed: Task | None = None
) -> tuple[list[Samples], Task]:
    """Read each of these folders, `<class>/…` or `images/…` and `masks/…`; return their samples, and the task of all.

    `agreed` is the task that others have too; without it, classes are those that the folders hold.
    """
    kind = _kind(homes, agreed.name if agreed else experiment.task)
    size, settings = experiment.size, experiment.images
    if kind is Segmentation:
        samples = read_masked(homes, size, settings)
        task = agreed or kind.numbered(torch.cat([part.y for part in samples]))
    else:
        task = agreed or kind(class_names(homes, experiment.volumes))
        if unknown := sorted(set(class_names(homes, experiment.volumes)) - set(task.classes)):
            known = ", ".join(task.classes)
            raise UserError(f"{homes[0]}: the class {unknown[0]!r} is none of those agreed upon: {known}")
        samples = read_classes(homes, task.classes, size, settings)
    for home, part in zip(homes, samples, strict=True):
        task.check(part.y, str(home))
    return samples, task


def _kind(homes: Sequence[Path], asked: str | None) -> type[Task]:
    """Return the task that the folders are laid out for; raise if another is asked for, or if they differ."""
    masked = [home for home in homes if has_masks(home)]
    if masked and len(masked) < len(homes):
        other = next(home for home in homes if home not in masked)
        raise UserError(f"{other}: expected 'images' and 'masks', as in {masked[0]}")
    kind: type[Task] = Segmentation if masked else Classification
    if asked not in (None, kind.name):
        layout = "images/… and masks/…" if masked else "<class>/…"
        raise UserError(f"task = {asked!r}: but {homes[0]} holds {layout}, which is for {kind.name}")
    return kind
