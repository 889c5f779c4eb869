"""Whether this machine has a GPU that can be used, and why not. Nothing here takes its memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from llama3jit.compile.cuda.targets import OLDEST, Capability
from llama3jit.errors import DeviceError, InvalidArgumentError

OLDEST_DRIVER = 12000  # of CUDA 12.0; cubins of CUDA 12 run on any driver of it
INSTALL = "pip install 'llama3jit[cuda]'"
# Where Linux, and WSL, show a card.
CARDS = ("/dev/nvidia0", "/proc/driver/nvidia/version", "/dev/dxg")


@dataclass(frozen=True, slots=True)
class Card:
    """One device, as the driver describes it."""

    ordinal: int
    name: str
    capability: Capability
    memory: int  # bytes
    driver: str  # the CUDA version of the driver, "13.0"


def ordinal_of(device: str) -> int:
    """The number in "cuda" (0) and "cuda:1". Raises InvalidArgumentError if there is none."""
    number = device.partition(":")[2] if ":" in device else "0"
    if not (number.isascii() and number.isdigit()):
        raise InvalidArgumentError(f"device is {device!r}; expected cuda, or cuda:N as in cuda:1")
    return int(number)


def package_installed() -> bool:
    """Whether the packages of the extra [cuda] are there."""
    return all(_there(name) for name in ("cuda.core", "cuda.bindings"))


def _there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ImportError:
        return False


def card_present() -> bool:
    """Whether the system shows an NVIDIA card, as far as can be seen without its driver."""
    return any(os.path.exists(path) for path in CARDS)


def worth_a_word() -> bool:
    """Whether someone who asked for no device wants to hear why there is no GPU."""
    return package_installed() or card_present()


def find_card(ordinal: int = 0) -> Card:
    """The device of that number, if it can be used.

    Raises DeviceError that says what is missing and what to do.
    """
    if not package_installed():
        raise DeviceError(
            f"device 'cuda' needs the packages cuda-core and cuda-bindings: {INSTALL}"
        )
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(f"cuda-bindings does not load: {error}; {INSTALL}") from error
    version = _start(driver)
    count = int(_asked(driver.cuDeviceGetCount()))
    if ordinal >= count:
        there = f"only cuda:0 to cuda:{count - 1}" if count > 1 else "only cuda:0"
        found = there if count else "no CUDA device at all"
        raise DeviceError(f"there is no device cuda:{ordinal}: this machine has {found}")
    device = _asked(driver.cuDeviceGet(ordinal))
    kinds = driver.CUdevice_attribute
    capability = (
        int(
            _asked(
                driver.cuDeviceGetAttribute(
                    kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device
                )
            )
        ),
        int(
            _asked(
                driver.cuDeviceGetAttribute(
                    kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device
                )
            )
        ),
    )
    name = _asked(driver.cuDeviceGetName(128, device)).split(b"\0")[0].decode()
    if capability < OLDEST:
        raise DeviceError(
            f"{name} has compute capability {_dotted(capability)}; the kernels need "
            f"{_dotted(OLDEST)} or newer; use device='cpu'"
        )
    memory = int(_asked(driver.cuDeviceTotalMem(device)))
    return Card(ordinal, name, capability, memory, _version_text(version))


def _start(driver: Any) -> int:
    """The driver's CUDA version, as 1000 times the major one and 10 times the minor one."""
    try:
        error = driver.cuInit(0)[0]
    except Exception as missing:
        raise DeviceError(
            f"there is no NVIDIA driver (libcuda does not load: {str(missing).split(chr(10))[0]}); "
            f"install the driver, or use device='cpu'"
        ) from missing
    results = driver.CUresult
    if error == results.CUDA_ERROR_NO_DEVICE:
        raise DeviceError("the NVIDIA driver sees no GPU; use device='cpu'")
    if error != results.CUDA_SUCCESS:
        raise DeviceError(
            f"the NVIDIA driver does not start ({results(error).name}); see whether nvidia-smi "
            f"works, or use device='cpu'"
        )
    version = int(_asked(driver.cuDriverGetVersion()))
    if version < OLDEST_DRIVER:
        raise DeviceError(
            f"the NVIDIA driver is one for CUDA {_version_text(version)}; the kernels need "
            f"{_version_text(OLDEST_DRIVER)} or newer: update the driver, or use device='cpu'"
        )
    return version


def _asked(result: tuple[Any, ...]) -> Any:
    from llama3jit.devices.cuda.driver import called

    return called(result)


def _version_text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"
