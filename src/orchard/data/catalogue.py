"""The datasets known by name: their classes, files, licences and citations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MEDMNIST_SIZES = (28, 64, 128, 224)


@dataclass(frozen=True)
class Source:
    """A published file: its path in the data folder, its addresses and its MD5."""

    file: str
    addresses: tuple[str, ...]
    md5: str


@dataclass(frozen=True)
class Entry:
    """A dataset in the catalogue."""

    title: str
    classes: tuple[str, ...]
    channels: int
    """Of an image; 0: a table."""
    licence: str
    citation: str
    format: str
    """How it is stored: embedded, idx, cifar, medmnist or heart-disease."""
    files: Mapping[int, tuple[Source, ...]]
    """Its files, by the side of the images in pixels (0: a table); other sizes are made by resizing."""
    tasks: tuple[str, ...] = ("classification",)
    """What its labels are for; the first is the default."""
    natural: tuple[str, int] = ("", 0)
    """The partition by which the data come, if they do, and how many clients that makes."""

    @property
    def natural_name(self) -> str:
        """Name the partition by which the data come; empty if there is none."""
        return self.natural[0]


def _idx(folder: str, addresses: tuple[str, ...], sums: tuple[str, str, str, str]) -> dict[int, tuple[Source, ...]]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    files = [f"{name}-ubyte.gz" for name in names]
    return {
        28: tuple(
            Source(f"{folder}/{file}", tuple(address + file for address in addresses), md5)
            for file, md5 in zip(files, sums, strict=True)
        )
    }


def _medmnist(
    name: str,
    title: str,
    classes: tuple[str, ...],
    channels: int,
    sums: tuple[str, ...],
    licence: str = "CC BY 4.0",
    tasks: tuple[str, ...] = ("classification",),
) -> Entry:
    def source(size: int, md5: str) -> Source:
        file = f"{name}.npz" if size == 28 else f"{name}_{size}.npz"
        return Source(file, (f"https://zenodo.org/records/10519652/files/{file}?download=1",), md5)

    return Entry(
        title=title,
        classes=classes,
        channels=channels,
        licence=licence,
        citation="J. Yang et al., MedMNIST v2, Scientific Data 10, 41 (2023)",
        format="medmnist",
        files={size: (source(size, md5),) for size, md5 in zip(MEDMNIST_SIZES, sums, strict=True)},
        tasks=tasks,
    )


_DIGITS = tuple("0123456789")
_ORGANS = (
    "bladder",
    "femur-left",
    "femur-right",
    "heart",
    "kidney-left",
    "kidney-right",
    "liver",
    "lung-left",
    "lung-right",
    "pancreas",
    "spleen",
)

_IMAGES: Mapping[str, Entry] = {
    "digits": Entry(
        title="hand-written digits, 1,797 images enlarged from 8×8; part of Orchard",
        classes=_DIGITS,
        channels=1,
        licence="CC BY 4.0",
        citation="E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI (1998)",
        format="embedded",
        files={},
        natural=("writers", 14),
    ),
    "mnist": Entry(
        title="hand-written digits, 70,000 images",
        classes=_DIGITS,
        channels=1,
        licence="CC BY-SA 3.0",
        citation="Y. LeCun et al., Gradient-based learning applied to document recognition, Proc. IEEE 86 (1998)",
        format="idx",
        files=_idx(
            "mnist",
            ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
    ),
    "fashion-mnist": Entry(
        title="articles of clothing, 70,000 images",
        classes=(
            "T-shirt/top",
            "trouser",
            "pullover",
            "dress",
            "coat",
            "sandal",
            "shirt",
            "sneaker",
            "bag",
            "ankle boot",
        ),
        channels=1,
        licence="MIT",
        citation="H. Xiao et al., Fashion-MNIST, arXiv:1708.07747 (2017)",
        format="idx",
        files=_idx(
            "fashion-mnist",
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
    ),
    "cifar10": Entry(
        title="objects and animals, 60,000 images, 32×32, resized to 28×28 as in the paper",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        channels=3,
        licence="none stated; for research, please cite",
        citation="A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009)",
        format="cifar",
        files={
            32: (
                Source(
                    "cifar-10-binary.tar.gz",
                    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                    "c32a1d4ab5d03f1284b67883e8d87530",
                ),
            )
        },
    ),
    "organamnist": _medmnist(
        "organamnist",
        "organs in abdominal CT, axial view, 58,830 images; the paper's OrganMNIST (axial)",
        _ORGANS,
        1,
        (
            "68e3f8846a6bd62f0c9bf841c0d9eacc",
            "2dcccc29b88e6da5a01161ef20cda288",
            "eeae80d0a227a8d099027e1b3cfd3b60",
            "50747347e05c87dd3aaf92c49f9f3170",
        ),
    ),
    "pathmnist": _medmnist(
        "pathmnist",
        "tissue in colorectal cancer histology, 107,180 images; its official test set is from another hospital",
        (
            "adipose",
            "background",
            "debris",
            "lymphocytes",
            "mucus",
            "smooth muscle",
            "normal colon mucosa",
            "cancer-associated stroma",
            "colorectal adenocarcinoma epithelium",
        ),
        3,
        (
            "a8b06965200029087d5bd730944a56c1",
            "55aa9c1e0525abe5a6b9d8343a507616",
            "ac42d08fb904d92c244187169d1fd1d9",
            "2c51a510bcdc9cf8ddb2af93af1eadec",
        ),
    ),
    "bloodmnist": _medmnist(
        "bloodmnist",
        "blood cells under the microscope, 17,092 images",
        (
            "basophil",
            "eosinophil",
            "erythroblast",
            "immature granulocytes",
            "lymphocyte",
            "monocyte",
            "neutrophil",
            "platelet",
        ),
        3,
        (
            "7053d0359d879ad8a5505303e11de1dc",
            "2b94928a2ae4916078ca51e05b6b800b",
            "adace1e0ed228fccda1f39692059dd4c",
            "b718ff6835fcbdb22ba9eacccd7b2601",
        ),
    ),
    "tissuemnist": _medmnist(
        "tissuemnist",
        "kidney cortex cells under the microscope, 236,386 images",
        (
            "collecting duct, connecting tubule",
            "distal convoluted tubule",
            "glomerular endothelial cells",
            "interstitial endothelial cells",
            "leukocytes",
            "podocytes",
            "proximal tubule segments",
            "thick ascending limb",
        ),
        1,
        (
            "ebe78ee8b05294063de985d821c1c34b",
            "123ece2eba09d0aa5d698fda57103344",
            "61b955355d7425a89687b06cca3ce0c2",
            "b077128c4a949f0a4eb01517f9037b9c",
        ),
    ),
    "dermamnist": _medmnist(
        "dermamnist",
        "pigmented skin lesions, 10,015 images",
        (
            "actinic keratoses and intraepithelial carcinoma",
            "basal cell carcinoma",
            "benign keratosis-like lesions",
            "dermatofibroma",
            "melanoma",
            "melanocytic nevi",
            "vascular lesions",
        ),
        3,
        (
            "0744692d530f8e62ec473284d019b0c7",
            "b70a2f5635c6199aeaa28c31d7202e1f",
            "2defd784463fa5243564e855ed717de1",
            "8974907d8e169bef5f5b96bc506ae45d",
        ),
        licence="CC BY-NC 4.0",
    ),
    "octmnist": _medmnist(
        "octmnist",
        "retinal optical coherence tomography, 109,309 images",
        ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
        1,
        (
            "c68d92d5b585d8d81f7112f81e2d0842",
            "e229e9440236b774d9f0dfef9d07bdaf",
            "0a97e76651ace45c5d943ee3f65b63ae",
            "abc493b6d529d5de7569faaef2773ba3",
        ),
    ),
    "pneumoniamnist": _medmnist(
        "pneumoniamnist",
        "children's chest X-rays, 5,856 images",
        ("normal", "pneumonia"),
        1,
        (
            "28209eda62fecd6e6a2d98b1501bb15f",
            "8f4eceb4ccffa70c672198ea285246c6",
            "05b46931834c231683c68f40c47b2971",
            "d6a3c71de1b945ea11211b03746c1fe1",
        ),
    ),
    "breastmnist": _medmnist(
        "breastmnist",
        "breast ultrasound, 780 images",
        ("malignant", "normal or benign"),
        1,
        (
            "750601b1f35ba3300ea97c75c52ff8f6",
            "742edef2a1fd1524b2efff4bd7ba9364",
            "363e4b3f8d712e9b5de15470a2aaadf1",
            "b56378a6eefa9fed602bb16d192d4c8b",
        ),
    ),
    "organcmnist": _medmnist(
        "organcmnist",
        "organs in abdominal CT, coronal view, 23,583 images",
        _ORGANS,
        1,
        (
            "b9ceb9546e10131b32923c5bbeaea2b1",
            "3ce34a8724ea6f548e6db4744d03b6a9",
            "773c1f009daa3fe5d9a2a201b2a7ed94",
            "050f5e875dc056f6768abf94ec9995d1",
        ),
    ),
    "organsmnist": _medmnist(
        "organsmnist",
        "organs in abdominal CT, sagittal view, 25,211 images",
        _ORGANS,
        1,
        (
            "9ab87b696fb54e2a387ebe992d6ed5f1",
            "53a6d115339d874c25e309a994ff46d3",
            "ded0c5fa01a95dc4978b956f613e9b8e",
            "b354719e553fbbb2513d5533f52a4cb1",
        ),
    ),
    "chestmnist": _medmnist(
        "chestmnist",
        "chest X-rays with any of 14 findings, 112,120 images",
        (
            "atelectasis",
            "cardiomegaly",
            "effusion",
            "infiltration",
            "mass",
            "nodule",
            "pneumonia",
            "pneumothorax",
            "consolidation",
            "edema",
            "emphysema",
            "fibrosis",
            "pleural",
            "hernia",
        ),
        1,
        (
            "02c8a6516a18b556561a56cbdd36c4a8",
            "9de6cd0b934ebb5b7426cfba5efbae16",
            "db107e5590b27930b62dbaf558aebee3",
            "45bd33e6f06c3e8cdb481c74a89152aa",
        ),
        tasks=("multilabel",),
    ),
    "retinamnist": _medmnist(
        "retinamnist",
        "diabetic retinopathy graded 0 to 4, 1,600 images; as classes, or as a number (task = regression)",
        ("0", "1", "2", "3", "4"),
        3,
        (
            "bd4c0672f1bba3e3a89f0e4e876791e4",
            "afda852cc34dcda56f86ad2b2457dbcc",
            "e48e916a24454daf90583d4e6efb1a18",
            "eae7e3b6f3fcbda4ae613ebdcbe35348",
        ),
        tasks=("classification", "regression"),
    ),
}


def _heart_disease(reading: str, patients: int) -> Entry:
    sums = {
        "cleveland": "2d91a8ff69cfd9616aa47b59d6f843db",
        "hungarian": "22e96bee155b5973568101c93b3705f6",
        "switzerland": "9a87f7577310b3917730d06ba9349e20",
        "va": "4249d03ca7711e84f4444768c9426170",
    }
    address = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/processed."
    return Entry(
        title=f"heart disease at four hospitals, {patients} patients, {reading}",
        classes=("healthy", "ill"),
        channels=0,
        licence="CC BY 4.0",
        citation="A. Janosi, W. Steinbrunn, M. Pfisterer and R. Detrano, Heart Disease, UCI (1989)",
        format="heart-disease",
        files={
            0: tuple(
                Source(f"heart-disease/processed.{name}.data", (f"{address}{name}.data",), md5)
                for name, md5 in sums.items()
            )
        },
        natural=("hospitals", 4),
    )


CATALOGUE: Mapping[str, Entry] = {
    **_IMAGES,
    "heart-disease": _heart_disease("missing values filled in", 920),
    "heart-disease-complete": _heart_disease("complete rows only, without three columns, as in FLamby", 740),
}

NAMES = frozenset({*CATALOGUE, "arrays"})
"""All names of datasets; anything else is a path."""

_HEART_DISEASE: Mapping[str, Any] = {
    "clients": 4,
    "partition": {"name": "hospitals"},
    "model": "logistic",
    "batch_size": 16,
    "rounds": 40,
    "epochs": 2,
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "arrays": {"partition": {"name": "given"}},
    "digits": {"clients": 8, "partition": {"name": "dirichlet", "alpha": 0.5}, "batch_size": 16, "rounds": 25},
    "heart-disease": _HEART_DISEASE,
    "heart-disease-complete": _HEART_DISEASE,
}
"""Settings that differ from the usual defaults, by dataset."""
TABLE_DEFAULTS: Mapping[str, Any] = {"model": "mlp", "batch_size": 16, "rounds": 40, "epochs": 2}
"""Those for tables of the user's own."""
