"""Devices as numbers: how fast they multiply, read memory and talk to each other.

Datasheet rates are chosen over measured ones: they are bounds that anyone can look up, and what a
program reaches of them (MFU) is then a figure that compares. The price: no program reaches them; a
large bf16 product gets 70-80% of an H100's rate.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmpipe.errors import ConfigError, did_you_mean

DEVICES_PER_NODE = 8  # an HGX board; beyond it, the network


@dataclass(frozen=True)
class Accelerator:
    """A device's dense bf16 matrix rate, its memory, and its links, in one direction each."""

    name: str
    flops_per_second: float
    bytes_per_second: float
    memory_bytes: float
    link_bytes_per_second: float  # to the devices of its node
    network_bytes_per_second: float  # to other nodes

    @property
    def intensity(self) -> float:
        """FLOPs per byte below which a computation waits for memory: 295 on an H100."""
        return self.flops_per_second / self.bytes_per_second


# Sources: NVIDIA's datasheets of the SXM parts (dense rates; NVLink is given there as the sum of
# both directions: 600 GB/s on A100, 900 on H100 and H200) and of DGX A100 and DGX H100 (a network
# port of 200 and 400 Gbit/s for each GPU).
A100 = Accelerator("A100", 312e12, 2.04e12, 80e9, 300e9, 25e9)
H100 = Accelerator("H100", 989e12, 3.35e12, 80e9, 450e9, 50e9)
H200 = Accelerator("H200", 989e12, 4.8e12, 141e9, 450e9, 50e9)
# Source: Intel's product page of Xeon Platinum 8480+: 56 cores at 2.0 GHz with two AVX-512 FMA
# units (64 fp32 FLOPs a cycle and core), 8 channels of DDR5-4800. Memory and links are assumed:
# 8 x 32 GB, 10 Gbit/s Ethernet.
CPU = Accelerator("CPU", 56 * 2.0e9 * 64, 307.2e9, 256e9, 1.25e9, 1.25e9)

ACCELERATORS = {device.name: device for device in (A100, H100, H200, CPU)}


def accelerator_named(name: str) -> Accelerator:
    """Return a device by name, in any case.

    Raises:
        ConfigError: no such device; the known ones are named.
    """
    device = ACCELERATORS.get(name.upper())
    if device is None:
        raise ConfigError(f"no device {name!r}; {did_you_mean(name.upper(), ACCELERATORS)}")
    return device


def accelerator_of(device: str) -> Accelerator | None:
    """Return the kind of a GPU by the driver's name for it, such as `NVIDIA H100 80GB HBM3`.

    A kind is a word of the name: `GH200` is no H200. None for a GPU whose rates are not known.
    """
    words = device.upper().replace("-", " ").split()
    return next((ACCELERATORS[word] for word in words if word in ACCELERATORS), None)


def link_rate(device: Accelerator, ranks: int) -> float:
    """Return the bytes per second that each of `ranks` devices sends in a ring.

    Between nodes, a ring leaves each node once: as many rings as there are ports share the volume,
    so the ports of all devices of a node count for each.
    """
    if ranks <= DEVICES_PER_NODE:
        return device.link_bytes_per_second
    return min(device.link_bytes_per_second, DEVICES_PER_NODE * device.network_bytes_per_second)
