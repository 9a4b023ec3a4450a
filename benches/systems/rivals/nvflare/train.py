"""The training script of each site: it adds the site's number to the model, and sends the model back."""

from __future__ import annotations

import nvflare.client as flare
from contract import train

flare.init()
index = int(flare.get_site_name().partition("-")[2])
while flare.is_running():
    model = flare.receive()
    for array in model.params.values():
        train(array, index)
    flare.send(flare.FLModel(params=model.params))
