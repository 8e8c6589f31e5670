"""Models known by their gradients only: parameters of real shapes, computation that is emulated.

The backward pass reaches the layers last first, and each takes a share of the time that goes by its
arithmetic. So gradients become ready as they would, and DDP's own buckets carry them. Nothing is
downloaded, and no device is needed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

BUCKET_BYTES = 25 << 20  # DDP's default
FIRST_BUCKET_BYTES = 1 << 20  # and of the bucket that is ready first
FORWARD = 1 / 3  # of a step's computation: the backward pass does twice the forward's arithmetic
Shape = tuple[int, ...]


class Layer(NamedTuple):
    """Parameters whose gradients become ready together."""

    shapes: tuple[Shape, ...]
    positions: int  # of the input that each parameter is applied to: its share of the arithmetic

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def flat(self, scale: float = 1.0) -> Layer:
        """The same as one parameter, `scale` times as small."""
        return Layer(((max(1, round(self.size / scale)),),), self.positions)

    def scaled(self, scale: float) -> Layer:
        """Its parameters one by one, each `scale` times as small."""
        shapes = tuple((max(1, round(math.prod(shape) / scale)),) for shape in self.shapes)
        return Layer(shapes, self.positions)


def _convolution(inputs: int, outputs: int, side: int) -> tuple[Shape, ...]:
    """Without a bias, and its batch normalisation."""
    return ((outputs, inputs, side, side), (outputs,), (outputs,))


def _linear(inputs: int, outputs: int) -> tuple[Shape, ...]:
    return ((outputs, inputs), (outputs,))


def resnet50() -> list[Layer]:
    """25.6 million parameters, growing towards the end while the image shrinks."""
    layers = [Layer(_convolution(3, 64, 7), 112 * 112)]
    stages = ((64, 3, 64, 56), (128, 4, 256, 28), (256, 6, 512, 14), (512, 3, 1024, 7))
    for width, blocks, stage_in, side in stages:
        for block in range(blocks):
            inputs = stage_in if block == 0 else 4 * width
            shapes = (
                *_convolution(inputs, width, 1),
                *_convolution(width, width, 3),
                *_convolution(width, 4 * width, 1),
            )
            if block == 0:
                shapes += _convolution(inputs, 4 * width, 1)
            layers.append(Layer(shapes, side * side))
    return [*layers, Layer(_linear(2048, 1000), 1)]


def vgg16() -> list[Layer]:
    """138 million parameters, three quarters of them in one layer near the end."""
    channels = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    sides = [224, 224, 112, 112, 56, 56, 56, 28, 28, 28, 14, 14, 14]
    layers = [
        Layer(((b, a, 3, 3), (b,)), side * side)
        for (a, b), side in zip(pairwise(channels), sides, strict=True)
    ]
    ends = ((25088, 4096), (4096, 4096), (4096, 1000))
    return [*layers, *(Layer(_linear(*end), 1) for end in ends)]


def _transformer_block(width: int, inner: int) -> tuple[Shape, ...]:
    norm: tuple[Shape, ...] = ((width,), (width,))
    attention = (*_linear(width, 3 * width), *_linear(width, width))
    return (*norm, *attention, *norm, *_linear(width, inner), *_linear(inner, width))


def gpt2() -> list[Layer]:
    """GPT-2 small: 124 million parameters; the embedding, also the head, has its gradient last."""
    width, tokens = 768, 1024
    embeddings = Layer(((50257, width), (1024, width)), tokens)
    return [embeddings, *[Layer(_transformer_block(width, 4 * width), tokens)] * 12]


def bert() -> list[Layer]:
    """BERT base: 110 million parameters; 12 layers of width 768 over 128 tokens."""
    width, tokens = 768, 128
    embeddings = ((30522, width), (512, width), (2, width), (width,), (width,))
    # A look-up costs next to nothing, however large the table.
    layers = [Layer(embeddings, 1), *[Layer(_transformer_block(width, 4 * width), tokens)] * 12]
    return [*layers, Layer(_linear(width, width), 1)]


def transformer_xl() -> list[Layer]:
    """Transformer-XL base as for WikiText-103: 16 layers of width 410 and a vocabulary of 267,735,
    whose embedding, also the head, has three quarters of the 151 million parameters."""
    width, inner, tokens = 410, 2100, 150
    attention = ((3 * width, width), (width, width), (width, width), (width,), (width,))
    feed = (*_linear(width, inner), *_linear(inner, width), (width,), (width,))
    embedding = Layer(((267_735, width), (267_735,)), tokens // 10)  # an adaptive softmax
    return [embedding, *[Layer((*attention, *feed), tokens)] * 16]


def even(gradient_bytes: int = 40 << 20, layers: int = 40) -> list[Layer]:
    """Layers of one size and one share of the computation."""
    return [Layer(((gradient_bytes // 4 // layers,),), 1)] * layers


MODELS: dict[str, Callable[[], list[Layer]]] = {
    "vgg16": vgg16,
    "resnet50": resnet50,
    "transformer_xl": transformer_xl,
    "bert": bert,
    "gpt2": gpt2,
    "even": even,
}


def compute_shares(layers: Sequence[Layer]) -> list[float]:
    """Each layer's part of the arithmetic; they add up to 1."""
    work = [layer.size * layer.positions for layer in layers]
    return [one / sum(work) for one in work]


class Bucket(NamedTuple):
    bytes: int
    ready: float  # the share of the backward pass after which its last gradient is ready


def buckets(
    layers: Sequence[Layer], cap: float = BUCKET_BYTES, first_cap: float = FIRST_BUCKET_BYTES
) -> list[Bucket]:
    """DDP's buckets in the order in which they become ready: a parameter goes whole into a bucket,
    which is closed once it has reached the cap."""
    found, open_bytes, done, limit = [], 0, 0.0, first_cap
    for layer, share in zip(reversed(layers), reversed(compute_shares(layers)), strict=True):
        done += share
        for shape in reversed(layer.shapes):
            open_bytes += 4 * math.prod(shape)
            if open_bytes >= limit:
                found.append(Bucket(open_bytes, done))
                open_bytes, limit = 0, cap
    return [*found, Bucket(open_bytes, done)] if open_bytes else found


def step_limit(
    ready: Sequence[Bucket], forward: float, backward: float, seconds_per_byte: float
) -> float:
    """Seconds of a step whose buckets travel one after the other, each once it is ready."""
    end = 0.0
    for bucket in ready:
        end = max(end, forward + bucket.ready * backward) + bucket.bytes * seconds_per_byte
    return max(end, forward + backward)


class Compute:
    """Lets time pass as a layer's computation would. "sleep" leaves the processor idle and goes on
    whatever the processor does meanwhile, as computation on a GPU: a thread that wakes up late
    makes the next layer no later. "spin" uses the processor, in units whose length alone is
    measured first."""

    def __init__(self, by: str = "sleep") -> None:
        if by not in ("sleep", "spin"):
            raise ValueError(f"computation is emulated by sleep or spin, not {by!r}")
        self.unit_s = 0.0
        self._due = 0.0  # when what was asked for so far is done
        if by == "spin":
            self._a, self._b = torch.ones(96, 96), torch.ones(96, 96)
            self._spin(200)
            start = time.perf_counter()
            self._spin(1000)
            self.unit_s = (time.perf_counter() - start) / 1000

    def _spin(self, units: int) -> None:
        for _ in range(units):
            torch.mm(self._a, self._b)

    def start(self) -> None:
        """Begins a step's computation."""
        self._due = time.perf_counter()

    def pass_by(self, seconds: float) -> None:
        if self.unit_s:
            self._spin(round(seconds / self.unit_s))
            return
        self._due += seconds
        time.sleep(max(0.0, self._due - time.perf_counter()))


class Gradients:
    """Values for gradients. All views of one array, since making gradients shall cost the processor
    as little as a GPU would; another part of it each time, so that no element is always largest."""

    def __init__(self, largest: int, seed: int | None) -> None:
        """`seed` None: zeros, which cost less still, but which a codec treats unlike others."""
        self._slack, self._turn = 4096, 0
        if seed is None:
            self._values = None
        else:
            generator = torch.Generator().manual_seed(seed)
            self._values = torch.randn(largest + self._slack, generator=generator)

    def like(self, weight: torch.Tensor) -> torch.Tensor:
        if self._values is None:
            return torch.zeros(1).expand_as(weight)
        self._turn = (self._turn + 977) % self._slack
        return self._values[self._turn : self._turn + weight.numel()].view_as(weight)


class Backward(torch.autograd.Function):
    """Identity whose backward takes a layer's time and yields gradients of its parameters."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, model: Emulated, layer: int, *weights: Any) -> Any:
        context.model, context.layer = model, layer
        context.save_for_backward(*weights)
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        model = context.model
        model.compute.pass_by(model.backward_s[context.layer])
        made = [model.gradients.like(weight) for weight in context.saved_tensors]
        return gradient, None, None, *made


class Emulated(nn.Module):
    """Layers whose backward passes take `backward` seconds together, after a forward pass of
    `forward` seconds."""

    def __init__(
        self,
        layers: Sequence[Layer],
        backward: float,
        forward: float = 0.0,
        compute: Compute | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in layer.shapes)
            for layer in layers
        )
        self.compute = compute or Compute()
        self.forward_s = forward
        self.backward_s = [backward * share for share in compute_shares(layers)]
        largest = max(math.prod(shape) for layer in layers for shape in layer.shapes)
        self.gradients = Gradients(largest, seed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.compute.start()
        if self.forward_s:
            self.compute.pass_by(self.forward_s)
        for number, weights in enumerate(self.layers):
            x = Backward.apply(x, self, number, *weights)
        return x.sum()
