"""The data room: a dataset by name, dealt out to clients."""

from orchard.data.clients import ClientArrays, ClientData, FederatedData, Holdings, deal, federated_data, from_arrays
from orchard.data.datasets import load_dataset
from orchard.data.samples import Dataset, Samples
from orchard.data.site import site_data

__all__ = [
    "ClientArrays",
    "ClientData",
    "Dataset",
    "FederatedData",
    "Holdings",
    "Samples",
    "deal",
    "federated_data",
    "from_arrays",
    "load_dataset",
    "site_data",
]
