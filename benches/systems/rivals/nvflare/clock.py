"""A component of NVFlare's server that reports when a round begins, and when its mean is computed."""

from __future__ import annotations

import json
import time
from pathlib import Path

from contract import Job
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType


class Clock(FLComponent):
    """Reports each round of FedAvg. A round begins with the mean of the round before."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder, self.begin = folder, 0.0

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == AppEventType.ROUND_STARTED:
            self.begin = time.perf_counter()
        if event_type == AppEventType.AFTER_AGGREGATION:
            end = time.perf_counter()
            table = json.loads((Path(self.folder) / "job.json").read_text())
            job = Job(folder=Path(self.folder), index=0, **table)
            number = fl_ctx.get_prop(AppConstants.CURRENT_ROUND) + 1
            (mean,) = fl_ctx.get_prop(AppConstants.AGGREGATION_RESULT).params.values()
            # In the contract each round begins with a model of the round's number, so the difference is subtracted.
            job.done(number, self.begin, end, mean - (number - 1) * ((job.clients + 1) / 2 - 1))
