"""Say which build of torch was installed, and name the smaller one where a CUDA build finds no GPU."""

import torch


def main() -> None:
    """Print one line about the build; a CUDA build without a GPU works, so it is a notice and no failure."""
    if torch.version.cuda is None:
        print(f"setup: torch {torch.__version__}, a CPU build")
    elif torch.cuda.is_available():
        print(f"setup: torch {torch.__version__}, a CUDA build, on {torch.cuda.get_device_name(0)}")
    else:
        print(
            f"setup: torch {torch.__version__} is a CUDA build and this machine shows no GPU. It works, and takes "
            "several GB more than a CPU build: `make clean`, then `make setup TORCH_INDEX=URL` with the address that "
            "the PyTorch site gives for CPU (docs/install.md)."
        )


if __name__ == "__main__":
    main()
