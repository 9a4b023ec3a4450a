"""Low-rank adapters (LoRA, Hu et al. 2021) over a frozen layer: only the adapters travel.

    thalweg run --app examples/adapters.py:Adapters --clients 2 --rounds 5

The names are those that peft gives: base_model.model.layer.lora_A.default.weight.
"""

import torch
from torch import nn
from torch.nn.functional import mse_loss

WIDTH, RANK = 64, 2


class LoraLinear(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, RANK, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(RANK, base.out_features, bias=False)})
        nn.init.zeros_(self.lora_B["default"].weight)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


class Adapters:
    tensors = "*.lora_*"

    def model(self):
        base = nn.Linear(WIDTH, WIDTH)  # a pretrained layer; here one that says what it hears
        nn.init.eye_(base.weight)
        nn.init.zeros_(base.bias)
        layer = LoraLinear(base)
        return nn.ModuleDict({"base_model": nn.ModuleDict({"model": nn.ModuleDict({"layer": layer})})})

    def client_data(self, name, index, clients, seed):
        return examples(torch.Generator().manual_seed(seed + index), 200)

    def test_data(self):
        return examples(torch.Generator().manual_seed(99), 100)

    def train(self, model, data, config):
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
        for _ in range(30):
            optimizer.zero_grad()
            mse_loss(layer(model)(data[0]), data[1]).backward()
            optimizer.step()
        return len(data[0]), {}

    def evaluate(self, model, data):
        with torch.no_grad():
            return {"loss": float(mse_loss(layer(model)(data[0]), data[1]))}


def layer(model):
    return model["base_model"]["model"]["layer"]


def examples(generator, count):
    """What the frozen layer says of x, and a change of rank one, which the adapters learn."""
    x = torch.randn(count, WIDTH, generator=generator)
    direction = torch.ones(WIDTH) / WIDTH**0.5
    return x, x + 4 * (x @ direction)[:, None] * direction
