"""What the user asks for, by arguments and by LIGHT_* variables, as one value."""

from dataclasses import dataclass
from typing import Any

from taco_torch._extension import _C


@dataclass(frozen=True)
class Options:
    """Arguments of ``compress()``; None: what the LIGHT_* variables say."""

    compression: str | None = None
    ratio: float | None = None
    threshold: int | None = None
    values: str | None = None
    warm_up_steps: int = 0
    momentum: float = 0.0

    def settings(self) -> _C.GradientSettings:
        """Raises ValueError for what is out of range, TypeError for what is no number."""
        light = _C.lightcc_environment()
        compression = self.compression or compression_of_environment()

        def chosen(value: Any, variable: str) -> Any:
            return light[variable] if value is None else value

        wire = light["wire_dtype"]
        return _C.GradientSettings(
            compression=compression,
            ratio=chosen(self.ratio, "ratio"),
            threshold=chosen(self.threshold, "threshold"),
            values=chosen(self.values, "values"),
            warm_up_steps=self.warm_up_steps,
            momentum=self.momentum,
            # Named by the program, topk says nothing of gradients below the threshold.
            small=wire if self.compression is None and wire != "float32" else "none",
        )


def compression_of_environment() -> str:
    """What LIGHT_TOPK_ALLREDUCE and LIGHT_WIRE_DTYPE ask for; "none" if nothing."""
    light = _C.lightcc_environment()
    if light["topk"]:
        return "topk"
    return "none" if light["wire_dtype"] == "float32" else str(light["wire_dtype"])
