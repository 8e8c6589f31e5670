"""The form in which tensors are sent. Works without ``init()``."""

from typing import Any, NoReturn

import torch

from taco_torch.lightcc.settings import Options


class Compressor:
    """Turns a tensor into what is sent, and that back."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns a tensor to send in place of this one, and what ``decompress()`` has to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The result of an operation on what was sent, as a tensor like the original."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16. Sums beyond 65,504 overflow: Horovod's own is the
    same; LIGHT_WIRE_DTYPE=float16 scales."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if not tensor.dtype.is_floating_point:
            return tensor, tensor.dtype
        return tensor.to(torch.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class LightCC:
    """LightCC's ways, for gradients alone: they remember from step to step what they have left out.
    ``Compression.lightcc()`` makes one.

    Attributes:
        options: as ``taco_torch.lightcc.compress()`` takes them.
    """

    def __init__(self, options: Options) -> None:
        options.settings()  # an error of the caller's is one here
        self.options = options

    def compress(self, tensor: torch.Tensor) -> NoReturn:
        """Raises ValueError: no tensor is compressed by itself."""
        raise ValueError(
            "Compression.lightcc() is for DistributedOptimizer(): an operation by itself has no "
            "next step for what is left out. Compression.fp16 works there"
        )

    decompress = compress


def check_compressor(given: Any) -> None:
    """TypeError for what cannot compress gradients; a class will do as well as an object."""
    if given is LightCC or given == Compression.lightcc:
        raise TypeError(
            "compression is the function that makes LightCC's: write "
            "compression=hvd.Compression.lightcc(), with parentheses"
        )
    if not all(callable(getattr(given, name, None)) for name in ("compress", "decompress")):
        raise TypeError(
            f"compression is {given!r}, but must be Compression.none, Compression.fp16, "
            "Compression.lightcc() or another Compressor"
        )


class Compression:
    """The ways to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor

    @staticmethod
    def lightcc(
        compression: str = "topk",
        *,
        ratio: float | None = None,
        threshold: int | None = None,
        values: str | None = None,
        warm_up_steps: int = 0,
    ) -> LightCC:
        """LightCC's compression of an optimizer's float32 gradients between hosts, as the LIGHT_*
        variables and ``taco_torch.lightcc.compress()`` have it (docs/lightcc.md). Say the same on
        all ranks.

        Args:
            compression: "topk", "float16", "bfloat16", "auto" or "none".
            ratio: the share of elements that topk sends, above 0 and at most 1.
            threshold: bytes; the shortest bucket of gradients that topk is for.
            values: "float32" or "float16": what topk sends elements as.
            warm_up_steps: so many steps send more than that.

        Arguments that are left out are as the LIGHT_* variables say.

        Raises:
            ValueError, TypeError: an argument is out of range or of another type.
        """
        return LightCC(
            Options(
                compression=compression,
                ratio=ratio,
                threshold=threshold,
                values=values,
                warm_up_steps=warm_up_steps,
            )
        )
