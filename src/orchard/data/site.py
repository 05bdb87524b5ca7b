"""What one site brings: an `.npz` or a folder of images of its own, as it is, never dealt out by us."""

from collections.abc import Mapping
from pathlib import Path

from orchard.data.clients import FederatedData, client_of_samples, one_client
from orchard.data.folders import alike, class_names, read_class_folders
from orchard.data.own import PARTS, part_keys
from orchard.data.readers import read_npz
from orchard.data.samples import Samples, as_samples, image_samples, refuse_mixed_shapes, split_by_class
from orchard.errors import Refusal
from orchard.experiment import Experiment
from orchard.layout import folder_layout, subfolders


def site_data(path: Path, name: str, index: int, classes: tuple[str, ...], experiment: Experiment) -> FederatedData:
    """Load a site's data; without a test part they are split 80/20, without a validation part 85/15."""
    parts = _images(path, classes, experiment.size) if path.is_dir() else _arrays(path, experiment.size)
    refuse_mixed_shapes(list(parts.values()), str(path))
    train, test = (parts["train"], parts["test"]) if "test" in parts else split_by_class(parts["train"])
    return one_client(client_of_samples(name, index, experiment, train, parts.get("val"), test), classes)


def _arrays(path: Path, size: int) -> Mapping[str, Samples]:
    arrays = read_npz(path)
    keys = part_keys(arrays, path)
    return {
        part: as_samples(arrays[x], arrays[y], size, f"{path}: {x}", f"{path}: {y}") for part, (x, y) in keys.items()
    }


def _images(folder: Path, classes: tuple[str, ...], size: int) -> Mapping[str, Samples]:
    layout = folder_layout(folder)
    if layout == "clients":
        raise Refusal(f"{folder}: holds the folders of several clients; a site brings its own alone")
    homes = {"train": folder} if layout == "classes" else {path.name: path for path in subfolders(folder)}
    if strange := homes.keys() - set(PARTS):
        raise Refusal(f"{folder}: beside 'train' only 'val' and 'test' are expected, not {sorted(strange)}")
    if unknown := sorted(set(class_names(list(homes.values()))) - set(classes)):
        raise Refusal(f"{folder}: the class {unknown[0]!r} is none of those agreed upon: {', '.join(classes)}")
    stored = alike([read_class_folders(home, classes, size) for home in homes.values()])
    return {name: image_samples(part, size) for name, part in zip(homes, stored, strict=True)}
