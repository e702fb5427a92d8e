"""The module that vLLM's worker processes import is not collected: it needs vLLM, which takes seconds to import."""

collect_ignore = ["vllm_file_transfer.py"]
