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
    import numpy as np

    import orchard.site.worker as worker
    from orchard.engines.flare.messages import pack_answer

    def falsified(answer: Any, round: int) -> Any:
        message = dict(pack_answer(answer, round))
        if round == 0 or message["upload"] is None:
            return message
        vector = np.frombuffer(message["upload"], "<f4").copy()
        match hostile:
            case "not finite":
                vector[0] = np.nan
                message["upload"] = vector.tobytes()
            case "wrong length":
                message["upload"] = vector[1:].tobytes()
            case "wrong sender":
                message["site"] = "south"
            case "huge":
                message["upload"] = bytes(40_000_000)
            case "hang":
                time.sleep(1000)
        return message

    vars(worker)["pack_answer"] = falsified
