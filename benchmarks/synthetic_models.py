"""The models that pytorch_synthetic_benchmark.py trains: real computation on made-up data.

VGG16 and ResNet-50 have the layout of parameters of the published models, by name and shape
(138,357,544 and 25,557,032); BERT is the base model with its pooler (109,482,240). The
Transformer-XL is like the base model for WikiText-103: relative positions and a vocabulary of
267,735, without the memory of earlier segments, and with a sampled softmax in place of the adaptive
one. Their parameters are those of emulated.py, in the same order, where only gradients count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class VGG16(nn.Module):
    """Images (n, 3, 224, 224) to logits (n, 1000). Simonyan and Zisserman, 2014: their net D."""

    WIDTHS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in self.WIDTHS:
            if width == 0:
                layers.append(nn.MaxPool2d(2))
                continue
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 1000),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).flatten(1))


class Bottleneck(nn.Module):
    """A residual block of three convolutions, the second of which may halve the image."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return functional.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    """Images (n, 3, 224, 224) to logits (n, 1000). He et al., 2015; a block's stride is that of its
    3x3 convolution, as in all later implementations."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = self._stage(64, 64, blocks=3, stride=1)
        self.layer2 = self._stage(256, 128, blocks=4, stride=2)
        self.layer3 = self._stage(512, 256, blocks=6, stride=2)
        self.layer4 = self._stage(1024, 512, blocks=3, stride=2)
        self.fc = nn.Linear(2048, 1000)

    @staticmethod
    def _stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
        first = Bottleneck(inputs, width, stride)
        return nn.Sequential(first, *(Bottleneck(4 * width, width, 1) for _ in range(blocks - 1)))

    def forward(self, images: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(images)))
        x = functional.max_pool2d(x, 3, 2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def _heads(x: Tensor, heads: int) -> Tensor:
    """(n, tokens, width) as (n, heads, tokens, width / heads)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class BertLayer(nn.Module):
    """Self-attention and a feed-forward net, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (_heads(each, self.heads) for each in self.qkv(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.attention_norm(x + self.project(mixed))
        return self.feed_norm(x + self.down(functional.gelu(self.up(x))))


class Bert(nn.Module):
    """Words (n, 128) to logits of the words at every seventh place (n, 19, 30522), by the words'
    own vectors. Devlin et al., 2018: the base model, 12 layers of width 768."""

    VOCABULARY, WIDTH, EVERY = 30522, 768, 7

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(self.VOCABULARY, self.WIDTH)
        self.positions = nn.Embedding(512, self.WIDTH)
        self.segments = nn.Embedding(2, self.WIDTH)
        self.norm = nn.LayerNorm(self.WIDTH)
        self.layers = nn.Sequential(*(BertLayer(self.WIDTH, heads=12) for _ in range(12)))
        self.pooler = nn.Linear(self.WIDTH, self.WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        segments = (places >= words.shape[1] // 2).long()
        x = self.words(words) + self.positions(places) + self.segments(segments)
        x = self.layers(self.norm(x))
        guessed = torch.tanh(self.pooler(x[:, :: self.EVERY]))
        return functional.linear(guessed, self.words.weight)


class TransformerXLLayer(nn.Module):
    """Causal attention by content and by distance, and a feed-forward net."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.distance = nn.Linear(width, width, bias=False)
        self.attention_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.feed_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, distances: Tensor) -> Tensor:
        """x is (n, tokens, width), distances the vectors of distances tokens - 1 to 0."""
        tokens = x.shape[1]
        q, k, v = (_heads(each, self.heads) for each in self.qkv(x).chunk(3, -1))
        r = _heads(self.distance(distances)[None], self.heads)
        scores = q @ k.transpose(-1, -2) + shifted(q @ r.transpose(-1, -2))
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        scores = (scores / math.sqrt(q.shape[-1])).masked_fill(later, -math.inf)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = self.attention_norm(x + self.project(mixed))
        return self.feed_norm(x + self.down(functional.relu(self.up(x))))


def shifted(scores: Tensor) -> Tensor:
    """Scores (..., i, d) by distance, the largest first, as scores (..., i, j) by key: row i moves
    left by tokens - 1 - i. What then lies beyond the diagonal means nothing. (Dai et al., 2019,
    appendix B.)"""
    rows, columns = scores.shape[-2:]
    padded = functional.pad(scores, (1, 0))
    return padded.reshape(*scores.shape[:-2], columns + 1, rows)[..., 1:, :].reshape(scores.shape)


class TransformerXL(nn.Module):
    """Words (n, 150) to logits (n, 150, 4096) of the next words, among candidates that the caller
    chooses. 16 layers of width 410."""

    VOCABULARY, WIDTH, CANDIDATES = 267_735, 410, 4096

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Parameter(torch.empty(self.VOCABULARY, self.WIDTH).normal_(0, 0.02))
        self.bias = nn.Parameter(torch.zeros(self.VOCABULARY))
        self.layers = nn.ModuleList(
            TransformerXLLayer(self.WIDTH, heads=10, inner=2100) for _ in range(16)
        )

    def forward(self, words: Tensor) -> Tensor:
        x = functional.embedding(words, self.words) * math.sqrt(self.WIDTH)
        distances = self._waves(words.shape[1], x)
        for layer in self.layers:
            x = layer(x, distances)
        # The first words of a vocabulary that is sorted by frequency.
        candidates = torch.arange(self.CANDIDATES, device=words.device)
        table = functional.embedding(candidates, self.words)
        return x @ table.T + self.bias[: self.CANDIDATES]

    def _waves(self, tokens: int, like: Tensor) -> Tensor:
        """Sines and cosines of the distances tokens - 1 to 0."""
        steps = torch.arange(0, self.WIDTH, 2, device=like.device, dtype=like.dtype)
        distances = torch.arange(tokens - 1, -1, -1, device=like.device, dtype=like.dtype)
        angles = distances[:, None] * torch.exp(steps * (-math.log(10_000.0) / self.WIDTH))
        return torch.cat([angles.sin(), angles.cos()], -1)


class Task(NamedTuple):
    """A model with its made-up data."""

    make: Callable[[], nn.Module]
    unit: str  # what a batch is counted in
    inputs: Callable[[int], Tensor]  # of a batch of this size
    targets: Callable[[int], Tensor]  # one class for each row of logits


TASKS = {
    "vgg16": Task(
        VGG16,
        "img",
        lambda count: torch.randn(count, 3, 224, 224),
        lambda count: torch.randint(1000, (count,)),
    ),
    "resnet50": Task(
        ResNet50,
        "img",
        lambda count: torch.randn(count, 3, 224, 224),
        lambda count: torch.randint(1000, (count,)),
    ),
    "bert": Task(
        Bert,
        "seq",
        lambda count: torch.randint(Bert.VOCABULARY, (count, 128)),
        lambda count: torch.randint(Bert.VOCABULARY, (count * 19,)),
    ),
    "transformer_xl": Task(
        TransformerXL,
        "seq",
        lambda count: torch.randint(TransformerXL.VOCABULARY, (count, 150)),
        lambda count: torch.randint(TransformerXL.CANDIDATES, (count * 150,)),
    ),
}


def shapes_of(name: str) -> Iterator[tuple[int, ...]]:
    """The shapes of a model's parameters, in order, without the memory that they would take."""
    with torch.device("meta"):
        model = TASKS[name].make()
    for parameter in model.parameters():
        yield tuple(parameter.shape)
