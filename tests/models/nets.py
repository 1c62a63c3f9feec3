"""Models as people write them: small ones of every kind."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Inverted(nn.Module):
    """An inverted residual block with squeeze and excitation, without biases."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(channels, inner, 1, bias=False), nn.GroupNorm(2, inner), nn.Hardswish())
        self.depthwise = nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False, padding_mode="reflect")
        self.squeeze, self.excite = nn.Conv2d(inner, inner // 4, 1), nn.Conv2d(inner // 4, inner, 1)
        self.norm, self.project = nn.GroupNorm(2, inner), nn.Conv2d(inner, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.norm(self.depthwise(self.expand(x))))
        scale = F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        return x + self.project(y * scale)


def mobilenet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.GroupNorm(2, 8), nn.Hardswish(), Inverted(8, 16),
                         nn.Conv2d(8, 16, 1, 2, bias=False), nn.Hardswish(), Inverted(16, 32), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Dropout(0.1), nn.Linear(16, 4))


class Gru(nn.Module):
    """A bidirectional GRU that reads numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(3, 8, batch_first=True, bidirectional=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.gru(x)[0].mean(1))
        return out


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(20, 16), nn.Embedding(8, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.1, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 20, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("places", torch.arange(8), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        hidden = self.layer(self.embed(ids) + self.position(self.places[:ids.shape[1]]), src_mask=mask, is_causal=True)
        out: Tensor = self.head(self.norm(hidden)).transpose(1, 2)
        return out


def tuned() -> nn.Module:
    """Make a model whose body was trained before, BatchNorm included, and is frozen; its head is new."""
    draw = torch.Generator().manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1),
                         nn.BatchNorm2d(12), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    before, optimizer = nn.Sequential(body, nn.Linear(12, 2)), torch.optim.SGD(body.parameters(), lr=0.05)
    x = torch.randn(32, 3, 16, 16, generator=draw)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(before(x), (x.mean((1, 2, 3)) > 0).long()).backward()
        optimizer.step()
    return nn.Sequential(body.requires_grad_(False).eval(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))


class Named(nn.Module):
    """A model that returns scores and features by name."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = F.gelu(self.body(x))
        return {"features": features, "scores": self.head(features)}


class Two(nn.Module):
    """An image and a row of numbers, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.row, self.head = nn.Linear(6, 16), nn.Linear(48, 4)

    def forward(self, image: Tensor, row: Tensor) -> Tensor:
        out: Tensor = self.head(torch.cat([self.image(image), torch.relu(self.row(row))], 1))
        return out


class Regressor(nn.Module):
    """A network of numbers with a residual connection and one output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.silu(self.first(x))
        out: Tensor = self.last(hidden + F.silu(self.second(hidden))).squeeze(1)
        return out


class UNet(nn.Module):
    """A small U-Net: down, up by a transposed convolution, and across."""

    def __init__(self) -> None:
        super().__init__()
        self.across, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, 2, 1)
        self.norm, self.up, self.head = nn.GroupNorm(2, 12), nn.ConvTranspose2d(12, 8, 2, 2), nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        across = F.relu(self.across(x))
        up = self.up(F.relu(self.norm(self.down(across))))
        out: Tensor = self.head(torch.cat([across, F.interpolate(up, size=across.shape[2:])], 1))
        return out


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))


def weight_norm() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 4))


class TiedByHand(nn.Module):
    """An encoder and a decoder with one matrix, the decoder without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(6, 8), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.t()))
        return out


class Unused(nn.Module):
    """A model with a layer that its forward never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.other = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out


class Counting(Unused):
    """A model that counts its calls in a buffer."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        del self.other
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 4))
