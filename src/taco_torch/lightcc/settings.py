"""The user's settings, by arguments and by LIGHT_* variables, as one value."""

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from taco_torch._extension import _C

LOSSY = ("float16", "topk")  # what compress(model, "auto") allows
Environment = Mapping[str, Any]  # of _C.lightcc_environment()


@dataclass(frozen=True)
class Options:
    """Arguments of ``compress()``; None: what the LIGHT_* variables say."""

    compression: str | None = None
    ratio: float | None = None
    threshold: int | None = None
    values: str | None = None
    warm_up_steps: int = 0
    momentum: float = 0.0
    allow: Collection[str] | None = None

    def settings(self, must_ask: bool = False) -> _C.GradientSettings:
        """``must_ask``: somebody has to name a compression, by argument or variable.

        Raises ValueError for what is out of range, TypeError for what is of another type."""
        light = _C.lightcc_environment()
        compression = _asked_for(light) if self.compression is None else self.compression
        _check_string("compression", compression, "topk, float16, bfloat16, none or auto")
        if must_ask and self.compression is None and compression == "none":
            raise ValueError(
                "name the compression (topk, float16, bfloat16, auto or none): none of "
                "LIGHT_TOPK_ALLREDUCE, LIGHT_WIRE_DTYPE and LIGHT_AUTO asks for one"
            )
        allowed = self._allowed(compression, light)

        values = light["values"] if self.values is None else self.values
        _check_string("values", values, "float32 or float16")
        return _C.GradientSettings(
            compression=compression,
            ratio=_number("ratio", light["ratio"] if self.ratio is None else self.ratio),
            threshold=self._threshold(light),
            values=values,
            warm_up_steps=whole_number("warm_up_steps", self.warm_up_steps),
            momentum=_number("momentum", self.momentum),
            small=self._small(compression, allowed, light),
            may_top_k="topk" in allowed,
        )

    def _threshold(self, light: Environment) -> int:
        """0 where momentum is corrected: what is sent whole would lack it, while the optimizer must
        have none."""
        corrects = _number("momentum", self.momentum) != 0
        if self.threshold is None:
            return 0 if corrects else whole_number("threshold", light["threshold"])
        threshold = whole_number("threshold", self.threshold)
        if corrects and threshold > 0:
            raise ValueError(
                f"threshold is {threshold}, but must be 0 (or left out) with momentum "
                f"{self.momentum!r}: buckets below it would have no momentum at all, for the "
                "optimizer's must be 0"
            )
        return threshold

    def _small(self, compression: str, allowed: Collection[str], light: Environment) -> str:
        """The format for gradients that topk is not for."""
        if compression == "auto":
            return next((name for name in allowed if name != "topk"), "none")
        if self.compression is not None:
            return "none"  # named by the program, topk says nothing of what is below the threshold
        return _sixteen_bits(light) or "none"

    def _allowed(self, compression: str, light: Environment) -> Collection[str]:
        """The ways that ``auto`` may use besides exact gradients."""
        if compression != "auto":
            if self.allow is not None:
                raise ValueError(
                    f'allow is for compression "auto", which chooses; this is {compression!r}'
                )
            return ()
        if self.allow is None:
            return LOSSY if self.compression else _allowed_by(light)
        if not isinstance(self.allow, Iterable):
            raise TypeError(
                f'allow is {self.allow!r}, but must be names, such as ("float16", "topk")'
            )
        allowed = (self.allow,) if isinstance(self.allow, str) else tuple(self.allow)
        unknown = [name for name in allowed if name not in ("topk", "float16", "bfloat16")]
        if unknown:
            raise ValueError(f"allow names {unknown[0]!r}, but knows topk, float16 and bfloat16")
        if {"float16", "bfloat16"} <= set(allowed):
            raise ValueError("allow names both float16 and bfloat16: name the one to use")
        return allowed


def scale_of(grad_scaler: Any) -> Callable[[], float] | None:
    """Returns what tells by how much a GradScaler multiplies the loss. TypeError if it is none."""
    if grad_scaler is None:
        return None
    scale: Callable[[], float] | None = getattr(grad_scaler, "get_scale", None)
    if scale is None:
        raise TypeError(f"grad_scaler is {grad_scaler!r}, but must be a torch.amp.GradScaler")
    return scale


def whole_number(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, but must be a whole number") from None
    if abs(number) >= 1 << 63:
        raise ValueError(f"{name} is {number}, but must be below 2^63")
    return number


def _number(name: str, value: Any) -> float:
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError, RuntimeError):  # the last: of a tensor of several
        pass
    raise TypeError(f"{name} is {value!r}, but must be a number")


def _check_string(name: str, value: Any, accepted: str) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, but must be a string: {accepted}")


def _sixteen_bits(light: Environment) -> str:
    """The dtype that LIGHT_WIRE_DTYPE asks for; "": none."""
    wire = str(light["wire_dtype"])
    return "" if wire == "float32" else wire


def _allowed_by(light: Environment) -> tuple[str, ...]:
    """The ways that LIGHT_AUTO may use besides exact gradients."""
    wire = _sixteen_bits(light)
    return (("topk",) if light["topk"] else ()) + ((wire,) if wire else ())


def _asked_for(light: Environment) -> str:
    """Compression by LIGHT_AUTO, LIGHT_TOPK_ALLREDUCE and LIGHT_WIRE_DTYPE; "none" if nothing."""
    if light["auto"]:
        return "auto"
    return "topk" if light["topk"] else _sixteen_bits(light) or "none"
