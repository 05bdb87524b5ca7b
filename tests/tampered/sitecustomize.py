"""Code that a party runs beside its own: at the start of every Python process that has this folder in its path.

TAP: a folder, into which all that arrives over the network is written as it is after decryption.
HOSTILE: how a site's answers are falsified, from the second round on.
"""

import os
import time
from pathlib import Path
from typing import Any

if "TAP" in os.environ:
    from nvflare.fuel.f3.sfm.conn_manager import ConnManager

    process_frame = ConnManager.process_frame

    def tapped(self: Any, connection: Any, frame: Any) -> None:
        with (Path(os.environ["TAP"]) / str(os.getpid())).open("ab") as file:
            file.write(bytes(frame))
        process_frame(self, connection, frame)

    ConnManager.process_frame = tapped


if hostile := os.environ.get("HOSTILE"):
    import threading

    import numpy as np
    from nvflare.fuel.f3.streaming import blob_streamer

    import orchard.sites.worker as worker
    from orchard.engines.flare.messages import pack_update

    swelling = threading.Event()

    class Swollen(blob_streamer.BlobStream):  # type: ignore[misc]
        """Ten gigabytes of zeros in place of an upload, with or without saying so before; nobody needs to hold them."""

        def __init__(self, blob: Any, headers: Any) -> None:
            super().__init__(blob, headers)
            self.honest = not swelling.is_set() or self.get_size() < 100_000
            self.left = 10 * 2**30
            if not self.honest:
                self.size = 0 if hostile == "ten gigabytes undeclared" else self.left

        def read(self, chunk_size: int) -> Any:
            if self.honest:
                return super().read(chunk_size)
            chunk = bytes(min(chunk_size, self.left))
            self.left -= len(chunk)
            self.pos += len(chunk)
            return chunk

    blob_streamer.BlobStream = Swollen

    def falsified(update: Any, round: int) -> Any:
        message = dict(pack_update(update, round))
        if round == 0 or not message["upload"]:
            return message
        ((name, content),) = message["upload"]
        vector = np.frombuffer(content, "<f4").copy()
        match hostile:
            case "not finite":
                vector[0] = np.nan
                message["upload"] = [[name, vector.tobytes()]]
            case "scaled":
                message["upload"] = [[name, (-50 * vector).tobytes()]]
            case "wrong length":
                message["upload"] = [[name, vector[1:].tobytes()]]
            case "wrong sender":
                message["site"] = "south"
            case "ten gigabytes" | "ten gigabytes undeclared":
                swelling.set()
            case "die":
                os._exit(1)
            case "hang":
                time.sleep(1000)
        return message

    vars(worker)["pack_update"] = falsified
