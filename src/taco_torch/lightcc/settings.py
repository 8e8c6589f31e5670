"""What the user asks for, by arguments and by LIGHT_* variables, as one value."""

from collections.abc import Collection, Mapping
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

        Raises ValueError for what is out of range, TypeError for what is no number."""
        light = _C.lightcc_environment()
        compression = _asked_for(light) if self.compression is None else self.compression
        if must_ask and self.compression is None and compression == "none":
            raise ValueError(
                "name the compression (topk, float16, bfloat16, auto or none): none of "
                "LIGHT_TOPK_ALLREDUCE, LIGHT_WIRE_DTYPE and LIGHT_AUTO asks for one"
            )
        allowed = self._allowed(compression, light)

        def chosen(value: Any, variable: str) -> Any:
            return light[variable] if value is None else value

        return _C.GradientSettings(
            compression=compression,
            ratio=chosen(self.ratio, "ratio"),
            threshold=chosen(self.threshold, "threshold"),
            values=chosen(self.values, "values"),
            warm_up_steps=self.warm_up_steps,
            momentum=self.momentum,
            small=self._small(compression, allowed, light),
            may_top_k="topk" in allowed,
        )

    def _small(self, compression: str, allowed: Collection[str], light: Environment) -> str:
        """In how many bits gradients may be sent that topk is not for."""
        if compression == "auto":
            return next((name for name in allowed if name != "topk"), "none")
        if self.compression is not None:
            return "none"  # named by the program, topk says nothing of what is below the threshold
        return _sixteen_bits(light) or "none"

    def _allowed(self, compression: str, light: Environment) -> Collection[str]:
        """What ``auto`` may use besides exact gradients."""
        if compression != "auto":
            if self.allow is not None:
                raise ValueError(
                    f'allow is for compression "auto", which chooses; this is {compression!r}'
                )
            return ()
        if self.allow is None:
            return LOSSY if self.compression else _allowed_by(light)
        allowed = (self.allow,) if isinstance(self.allow, str) else tuple(self.allow)
        unknown = [name for name in allowed if name not in ("topk", "float16", "bfloat16")]
        if unknown:
            raise ValueError(f"allow names {unknown[0]!r}, but knows topk, float16 and bfloat16")
        if {"float16", "bfloat16"} <= set(allowed):
            raise ValueError("allow names both float16 and bfloat16: name the one to use")
        return allowed


def _sixteen_bits(light: Environment) -> str:
    """What LIGHT_WIRE_DTYPE asks for; "": nothing."""
    wire = str(light["wire_dtype"])
    return "" if wire == "float32" else wire


def _allowed_by(light: Environment) -> tuple[str, ...]:
    """What LIGHT_AUTO may use besides exact gradients."""
    wire = _sixteen_bits(light)
    return (("topk",) if light["topk"] else ()) + ((wire,) if wire else ())


def _asked_for(light: Environment) -> str:
    """By LIGHT_AUTO, LIGHT_TOPK_ALLREDUCE and LIGHT_WIRE_DTYPE; "none" if nothing."""
    if light["auto"]:
        return "auto"
    return "topk" if light["topk"] else _sixteen_bits(light) or "none"
