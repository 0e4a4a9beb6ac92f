"""Which build of PyTorch the set-up installs. pip is not run: what it is asked for is recorded."""

import platform
from pathlib import Path

import pytest
import setup_env  # from tools/

VENV = Path("somewhere")
VERSION = setup_env.pinned_torch()


@pytest.fixture
def machine(monkeypatch):
    """A Linux machine without GPU, torch or network, and the calls of pip made on it."""
    calls = []

    def set_up(gpu="", index=False, offered=(), present=setup_env.NO_TORCH, system="Linux"):
        monkeypatch.setattr(setup_env, "nvidia_gpu", lambda: gpu)
        monkeypatch.setattr(setup_env, "reachable", lambda _: index)
        monkeypatch.setattr(setup_env, "offered_versions", lambda *_: list(offered))
        monkeypatch.setattr(setup_env, "installed_torch", lambda _: present)
        monkeypatch.setattr(setup_env, "pip", lambda _, *arguments: calls.append(arguments))
        monkeypatch.setattr(platform, "system", lambda: system)
        return calls

    return set_up


def test_without_a_gpu_the_cpu_build_comes_from_its_own_index(machine, capsys):
    calls = machine(index=True, offered=[VERSION, f"{VERSION}+cpu"])
    setup_env.provide_torch(VENV, "auto")
    assert calls[0][:2] == ("install", f"torch=={VERSION}+cpu")
    assert calls[0][-2:] == ("--extra-index-url", setup_env.CPU_INDEX)
    assert setup_env.CPU_INDEX in capsys.readouterr().out


def test_without_that_index_a_cpu_build_that_pip_offers_is_taken(machine):
    calls = machine(offered=[f"{VERSION}+cpu", VERSION])
    setup_env.provide_torch(VENV, "auto")
    assert calls[0][:2] == ("install", f"torch=={VERSION}+cpu")
    assert "--extra-index-url" not in calls[0]


def test_cuda_is_never_installed_unasked_on_a_machine_without_a_gpu(machine, capsys):
    calls = machine(offered=[VERSION])
    setup_env.provide_torch(VENV, "auto")
    assert calls == []
    assert "TORCH=default" in capsys.readouterr().out


def test_asking_for_the_cpu_build_where_there_is_none_is_an_error(machine):
    machine(offered=[VERSION])
    with pytest.raises(SystemExit):
        setup_env.provide_torch(VENV, "cpu")


def test_with_a_gpu_the_default_build_is_installed(machine):
    calls = machine(gpu="GPU 0: NVIDIA H200", index=True, offered=[f"{VERSION}+cpu"])
    setup_env.provide_torch(VENV, "auto")
    assert calls[0][:2] == ("install", f"torch=={VERSION}")


def test_where_the_default_build_is_the_cpu_build_it_is_installed(machine):
    calls = machine(system="Darwin")
    setup_env.provide_torch(VENV, "auto")
    assert calls[0][:2] == ("install", f"torch=={VERSION}")


def test_none_takes_torch_out(machine):
    calls = machine(present=f"torch {VERSION}+cpu")
    setup_env.provide_torch(VENV, "none")
    assert calls == [("uninstall", "-y", "torch")]


def test_default_replaces_a_cpu_build(machine):
    calls = machine(present=f"torch {VERSION}+cpu")
    setup_env.provide_torch(VENV, "default")
    assert [call[0] for call in calls] == ["uninstall", "install"]


def test_a_torch_that_is_there_already_is_kept(machine):
    calls = machine(present=f"torch {VERSION}+cpu")
    setup_env.provide_torch(VENV, "auto")
    assert calls == []
