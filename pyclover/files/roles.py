"""Architectures that llama.cpp runs but that write no text one token after the other.

Those without a cache (llama-model.cpp, create_memory), those that only serve another model, and those that end in
something other than text. Names are those of llama-arch.cpp in the pinned llama.cpp.
"""

from __future__ import annotations

from pyclover.files.header import Header

_ENCODER = "an encoder: it turns text into embeddings and writes none"
_DRAFTER = "a drafter for another model: alone it writes no text"
_SPEECH = "a model for speech: it writes no text"
_DIFFUSION = "a text-diffusion model, which fills in a whole text at once: this program cannot run it"
_ROLES = {
    **dict.fromkeys(
        ("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert",
         "gemma-embedding", "llama-embed", "t5encoder"), _ENCODER,
    ),
    "t5": "an encoder and a decoder in one: this program does not run its encoder",
    **dict.fromkeys(("eagle3", "dflash", "gemma4-assistant"), _DRAFTER),
    **dict.fromkeys(("wavtokenizer-dec", "qwen3tts", "pockettts"), _SPEECH),
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), _DIFFUSION),
    "clip": "an encoder of images or sound for another model",
}  # fmt: skip
# llama.h, enum llama_pooling_type
_POOLING = {1: "mean", 2: "cls", 3: "last", 4: "rank"}


def no_text(header: Header) -> str:
    """Why a model of that architecture does not generate text, "" where it does."""
    role = _ROLES.get(header.architecture)
    return f"the architecture '{header.architecture}' is {role}" if role else ""


def pooling(header: Header) -> str:
    """How the model sums a text up, "" where it does not: models made for embeddings say so."""
    value = header.metadata.get(f"{header.architecture}.pooling_type", 0)
    return _POOLING.get(value, "") if isinstance(value, int) else ""
