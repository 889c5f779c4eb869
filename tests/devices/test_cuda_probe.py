"""What is said where there is no GPU that can be used; the driver is a made-up one."""

import sys
import types
import warnings
from types import SimpleNamespace

import pytest

from llama3jit.devices import choose
from llama3jit.devices.cuda import probe
from llama3jit.errors import DeviceError, InvalidArgumentError


def made_up_driver(*, init=0, version=13000, cards=1, capability=(9, 0)):
    """cuda.bindings.driver as far as it is asked."""
    attributes = {"MAJOR": capability[0], "MINOR": capability[1]}
    prefix = "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_"

    def start(flags):
        if isinstance(init, Exception):
            raise init
        return (init,)

    class Results:
        CUDA_SUCCESS, CUDA_ERROR_NO_DEVICE = 0, 100

        def __new__(cls, number):
            return SimpleNamespace(name="CUDA_ERROR_SYSTEM_NOT_READY")

    return SimpleNamespace(
        CUresult=Results,
        CUdevice_attribute=SimpleNamespace(**{prefix + k: v for k, v in attributes.items()}),
        cuInit=start,
        cuDriverGetVersion=lambda: (0, version),
        cuDeviceGetCount=lambda: (0, cards),
        cuDeviceGet=lambda n: (0, n),
        cuDeviceGetAttribute=lambda value, device: (0, value),
        cuDeviceGetName=lambda n, device: (0, b"A Card\0\0"),
        cuDeviceTotalMem=lambda device: (0, 2**34),
    )


@pytest.fixture
def driver(monkeypatch):
    """driver(...): from now on there are packages and this driver."""

    def install(**options):
        made_up = made_up_driver(**options)
        bindings = types.ModuleType("cuda.bindings")
        bindings.driver = made_up
        monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
        monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
        monkeypatch.setitem(sys.modules, "cuda.bindings.driver", made_up)
        monkeypatch.setattr(probe, "package_installed", lambda: True)

    return install


def test_a_card(driver):
    driver(cards=2, capability=(8, 9), version=12040)
    assert probe.find_card(1) == probe.Card(1, "A Card", (8, 9), 2**34, "12.4")
    assert choose.find_device("cuda:1") == 1
    assert choose.find_device("auto") == 0
    assert choose.find_device("cpu") is None


NO_DRIVER = RuntimeError("Failure finding libcuda.so\nsearched there")


@pytest.mark.parametrize(
    ("options", "ordinal", "message"),
    [
        ({"init": NO_DRIVER}, 0, r"no NVIDIA driver \(.*libcuda.so\); install the driver, or use"),
        ({"init": 100}, 0, "sees no GPU; use device='cpu'"),
        ({"init": 802}, 0, r"does not start \(CUDA_ERROR_SYSTEM_NOT_READY\); see whether nvidia"),
        ({"version": 11080}, 0, r"one for CUDA 11.8; the kernels need 12.0 or newer: update"),
        ({"cards": 0}, 0, "no device cuda:0: this machine has no CUDA device at all"),
        ({"cards": 1}, 1, "no device cuda:1: this machine has only cuda:0"),
        ({"cards": 3}, 3, "no device cuda:3: this machine has only cuda:0 to cuda:2"),
        ({"capability": (7, 0)}, 0, r"A Card has compute capability 7.0; the kernels need 7.5 or"),
    ],
)
def test_what_is_missing_is_said(driver, options, ordinal, message):
    driver(**options)
    with pytest.raises(DeviceError, match=message):
        probe.find_card(ordinal)
    with pytest.raises(DeviceError, match=message):
        choose.find_device(f"cuda:{ordinal}")


def test_without_the_packages(monkeypatch):
    monkeypatch.setattr(probe, "package_installed", lambda: False)
    with pytest.raises(
        DeviceError, match=r"cuda-core and cuda-bindings: pip install 'llama3jit\[cu"
    ):
        choose.find_device("cuda")


@pytest.mark.parametrize("device", ["cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cuda:²"])
def test_a_device_that_is_no_number(device):
    with pytest.raises(InvalidArgumentError, match="expected cuda, or cuda:N as in cuda:1"):
        choose.find_device(device)


def test_auto_says_why_it_is_the_cpu(driver):
    driver(version=11080)
    with pytest.warns(
        choose.NoGpuWarning, match="running on the CPU: the NVIDIA driver is one for"
    ):
        assert choose.find_device("auto") is None


@pytest.mark.parametrize(("package", "card", "says"), [(0, 0, False), (0, 1, True), (1, 0, True)])
def test_auto_says_nothing_where_nobody_expects_a_gpu(monkeypatch, package, card, says):
    monkeypatch.setattr(probe, "package_installed", lambda: bool(package))
    monkeypatch.setattr(probe, "card_present", lambda: bool(card))
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert choose.find_device("auto") is None
    assert len(caught) == says
