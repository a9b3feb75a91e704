"""Four different models, each compared with itself: never a fault."""

from __future__ import annotations

import torch
from blocks import batches, noise
from torch import nn


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(320, 900), nn.ReLU(), nn.Linear(900, 900), nn.ReLU(), nn.Linear(900, 24)).eval()


def mlp_inputs():
    return batches(24, 320)


def transformer():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(160, 4, 480, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def transformer_inputs():
    return [(noise(4, 48, 160, seed=i) * 12,) for i in range(8)]


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(72, 144, num_layers=2, batch_first=True)
        self.head = nn.Linear(144, 17)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


def lstm():
    return Tagger().eval()


def lstm_inputs():
    return [(noise(6, 20, 72, seed=i) * 8,) for i in range(8)]


def conv():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 48, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 12),
    ).eval()  # fmt: skip


def conv_inputs():
    return [(noise(4, 3, 40, 40, seed=i) * 6,) for i in range(8)]
