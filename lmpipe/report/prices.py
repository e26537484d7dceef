"""What an hour of a device costs, by the user's own table; without one nothing has a price."""

from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lmpipe.artifacts.attempts import Attempt
from lmpipe.errors import ConfigError

SHIPPED = Path(__file__).with_name("prices.yaml")


class Prices(BaseModel):
    """Prices of an hour; None where none is given."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    currency: str = Field(
        "USD", min_length=1, max_length=8, description="Name of the unit of all prices."
    )
    devices: dict[str, float | None] = Field(
        default_factory=dict, description="Part of a device's name to the price of its hour."
    )
    cpu_hour: float | None = Field(None, ge=0, description="One hour of one busy core.")

    def of_device(self, kind: str) -> float | None:
        """Return the price of a device's hour: that of the longest key in its name."""
        keys = [key for key in self.devices if key.lower() in kind.lower()]
        return self.devices[max(keys, key=len)] if keys else None

    def cost(self, attempt: Attempt) -> float | None:
        """Return what an attempt cost, or None where a price or a time is missing.

        Beside a GPU, CPU time counts only if it has a price: most GPU prices contain the host.
        """
        cpu = None
        if self.cpu_hour is not None and attempt.cpu_hours is not None:
            cpu = self.cpu_hour * attempt.cpu_hours
        kinds = gpu_kinds(attempt)
        if not kinds:
            return cpu
        prices = [self.of_device(kind) for kind in kinds]
        known = [price for price in prices if price is not None]
        if len(known) < len(prices):
            return None
        return sum(known) * attempt.gpu_hours / len(known) + (cpu or 0.0)


def gpu_kinds(attempt: Attempt) -> list[str]:
    """Return the kind of each GPU that an attempt held, such as NVIDIA H200."""
    gpus = [device for device in attempt.devices if device.startswith("cuda")]
    return [device.partition(" ")[2] or "unknown GPU" for device in gpus]


def load_prices(path: Path = SHIPPED) -> Prices:
    """Read a table of prices.

    Raises:
        ConfigError: no such file, or it holds what is no price.
    """
    if not path.is_file():
        raise ConfigError(f"no table of prices at {path}; copy {SHIPPED} and fill it in")
    try:
        prices = Prices.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"{path} is no table of prices: {error}") from error
    for kind, price in prices.devices.items():
        if price is not None and price < 0:
            raise ConfigError(f"{path}: devices.{kind} = {price} must be 0 or more, or null")
    return prices
