"""What the user asks for, by arguments and by LIGHT_* variables, as one value."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from taco_torch._extension import _C

LOSSY = ("float16", "topk")  # what compress(model, "auto") allows


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

    def settings(self) -> _C.GradientSettings:
        """Raises ValueError for what is out of range, TypeError for what is no number."""
        light = _C.lightcc_environment()
        compression = self.compression or compression_of_environment()
        allowed = self._allowed(compression)

        def chosen(value: Any, variable: str) -> Any:
            return light[variable] if value is None else value

        return _C.GradientSettings(
            compression=compression,
            ratio=chosen(self.ratio, "ratio"),
            threshold=chosen(self.threshold, "threshold"),
            values=chosen(self.values, "values"),
            warm_up_steps=self.warm_up_steps,
            momentum=self.momentum,
            small=self._small(compression, allowed),
            may_top_k="topk" in allowed,
        )

    def _small(self, compression: str, allowed: Collection[str]) -> str:
        """In how many bits gradients may be sent that topk is not for."""
        if compression == "auto":
            return next((name for name in allowed if name != "topk"), "none")
        # Named by the program, topk says nothing of gradients below the threshold.
        wire = str(_C.lightcc_environment()["wire_dtype"])
        return wire if self.compression is None and wire != "float32" else "none"

    def _allowed(self, compression: str) -> Collection[str]:
        """What ``auto`` may use besides exact gradients."""
        if compression != "auto":
            if self.allow is not None:
                raise ValueError(
                    f'allow is for compression "auto", which chooses; this is {compression!r}'
                )
            return ()
        if self.allow is None:
            return LOSSY if self.compression else allowed_by_environment()
        allowed = (self.allow,) if isinstance(self.allow, str) else tuple(self.allow)
        unknown = [name for name in allowed if name not in ("topk", "float16", "bfloat16")]
        if unknown:
            raise ValueError(f"allow names {unknown[0]!r}, but knows topk, float16 and bfloat16")
        if {"float16", "bfloat16"} <= set(allowed):
            raise ValueError("allow names both float16 and bfloat16: name the one to use")
        return allowed


def allowed_by_environment() -> tuple[str, ...]:
    """What LIGHT_AUTO may use besides exact gradients."""
    light = _C.lightcc_environment()
    wire = str(light["wire_dtype"])
    return (("topk",) if light["topk"] else ()) + ((wire,) if wire != "float32" else ())


def compression_of_environment() -> str:
    """What LIGHT_AUTO, LIGHT_TOPK_ALLREDUCE and LIGHT_WIRE_DTYPE ask for; "none" if nothing."""
    light = _C.lightcc_environment()
    if light["auto"]:
        return "auto"
    if light["topk"]:
        return "topk"
    return "none" if light["wire_dtype"] == "float32" else str(light["wire_dtype"])
