"""A loaded model file: weights and vocabulary."""

from __future__ import annotations

import operator
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyclover import arguments
from pyclover._native import buffer, check, ffi, lib, taken
from pyclover.engine import logs
from pyclover.engine.handle import Handle
from pyclover.errors import LoadError, PathLike, UnsupportedModelError, UsageError, shortened
from pyclover.files.gate import ValidatedModel, validate

if TYPE_CHECKING:
    from pyclover.engine.context import Context

Progress = Callable[[float], object]


@dataclass(frozen=True)
class ModelInfo:
    """Facts that llama.cpp tells about a loaded model; token ids are -1 where there is none."""

    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_params: int
    size_bytes: int
    recurrent: bool
    has_decoder: bool
    has_encoder: bool
    diffusion: bool
    add_bos: bool
    bos: int
    eos: int
    eot: int
    mask: int


def as_tokens(tokens: Sequence[int]) -> Any:
    """Token ids as a C array.

    Raises:
        UsageError: an element is not an integer of 32 bits.
    """
    if isinstance(tokens, (str, bytes, bytearray)):
        raise UsageError(
            f"tokens is of type {type(tokens).__name__}: give token ids, such as tokenize() returns", option="tokens"
        )
    try:
        return ffi.new("int32_t[]", [operator.index(t) for t in tokens])
    except (TypeError, OverflowError):
        raise UsageError("tokens must be token ids: integers of at most 32 bits", option="tokens") from None


class Model:
    """A model file in memory. It owns the contexts made on it: closing it closes them first.

    Args:
        path: a GGUF file, any shard of a split one. It is checked before native code sees a byte; or one that was.
        n_gpu_layers: layers to keep on GPUs, -1 for all.
        n_cpu_moe: layers, from the first, whose routed experts stay in main memory, -1 for all.
        main_gpu: the GPU for what cannot be split.
        mmap: map the file instead of reading it. mlock: keep it from being swapped out.
        check_tensors: look at every weight for invalid values while loading.
        progress: called with 0 to 1 while the weights load; returning False stops the load.

    Raises:
        FileError: and its kinds, when the file cannot be used.
        CancelledError: progress returned False.
    """

    def __init__(
        self,
        path: PathLike | ValidatedModel,
        *,
        n_gpu_layers: int = -1,
        n_cpu_moe: int = 0,
        main_gpu: int = 0,
        mmap: bool = True,
        mlock: bool = False,
        check_tensors: bool = False,
        progress: Progress | None = None,
    ) -> None:
        arguments.integer("n_gpu_layers", n_gpu_layers, -1)
        arguments.integer("n_cpu_moe", n_cpu_moe, -1)
        arguments.integer("main_gpu", main_gpu, 0)
        for option, value in (("mmap", mmap), ("mlock", mlock), ("check_tensors", check_tensors)):
            arguments.boolean(option, value)
        if progress is not None and not callable(progress):
            raise UsageError(f"progress is {shortened(progress)}: it must be a function or None", option="progress")
        self.file: ValidatedModel = path if isinstance(path, ValidatedModel) else validate(path)
        self.path = os.fspath(self.file.first_path)
        self._contexts: weakref.WeakSet[Context] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._pieces: dict[int, bytes] = {}

        params = ffi.new("pc_model_params *")
        params.n_gpu_layers = n_gpu_layers
        params.n_cpu_moe = n_cpu_moe
        params.main_gpu = main_gpu
        params.mmap = mmap
        params.mlock = mlock
        params.check_tensors = check_tensors
        handle = ffi.new_handle(progress)
        params.progress = lib.pyclover_progress
        params.user = handle
        out = ffi.new("pc_model **")
        logs.drain()
        try:
            check(lib.pc_model_load(os.fsencode(self.path), params, out), path=self.path)
        except LoadError as e:
            e.log = tuple(line.text for line in logs.drain()[0][-20:])
            raise
        self.handle = Handle(self, out[0], lib.pc_model_free, "the model")
        self.info = self._read_info()
        self._refuse_what_cannot_generate()

    def _read_info(self) -> ModelInfo:
        raw = ffi.new("pc_model_info *")
        with self.handle as model:
            check(lib.pc_model_get_info(model, raw))
        flags = {"recurrent", "has_decoder", "has_encoder", "diffusion", "add_bos"}
        facts: dict[str, Any] = {
            name: bool(getattr(raw, name)) if name in flags else int(getattr(raw, name))
            for name in ModelInfo.__dataclass_fields__
        }
        return ModelInfo(**facts)

    def _refuse_what_cannot_generate(self) -> None:
        why = ""
        if self.info.has_encoder or not self.info.has_decoder:
            why = "it has an encoder, and this package runs decoder-only models"
        elif self.info.diffusion:
            why = "its architecture has no autoregressive mode"
        elif self.info.n_vocab == 0:
            why = "it has no vocabulary (tokenizer.ggml.tokens)"
        if why:
            self.close()
            raise UnsupportedModelError(
                f"{self.path} cannot generate text here: {why}; use another model", path=self.path
            )

    @property
    def closed(self) -> bool:
        return self.handle.closed

    def adopt(self, context: Context) -> None:
        with self._lock:
            self._contexts.add(context)

    def close(self) -> None:
        """Frees the weights, and before them every context on them. Closing twice does nothing."""
        with self._lock:
            contexts = list(self._contexts)
        for context in contexts:
            context.close()
        self.handle.close()

    # ---- vocabulary -----------------------------------------------------------------------------------------------

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of a text.

        Args:
            add_special: add the tokens that the model wants at the start and end.
            parse_special: turn the text of special tokens, such as <|im_end|>, into these tokens.

        Raises:
            UsageError: the text holds lone surrogates, which have no UTF-8 form, or is too long.
        """
        data = arguments.text("text", text).encode()
        arguments.boolean("add_special", add_special)
        arguments.boolean("parse_special", parse_special)
        n = ffi.new("size_t *")
        capacity = len(data) + 16
        while True:
            out = ffi.new("int32_t[]", capacity)
            with self.handle as model:
                check(lib.pc_tokenize(model, data, len(data), add_special, parse_special, out, capacity, n))
            if n[0] <= capacity:
                return list(ffi.unpack(out, n[0])) if n[0] else []
            capacity = n[0]

    def token_is_end(self, token: int) -> bool:
        """Whether a token ends a text."""
        out = ffi.new("int32_t *")
        with self.handle as model:
            check(lib.pc_token_is_end(model, token, out))
        return bool(out[0])

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """Bytes of one token as they appear in text; a control token has none unless `special`.

        Raises:
            UsageError: no such token.
        """
        known = None if special else self._pieces.get(token)
        if known is not None:
            return known
        n = ffi.new("size_t *")
        capacity = 64
        while True:
            out = ffi.new("char[]", capacity)
            with self.handle as model:
                check(lib.pc_token_piece(model, token, special, out, capacity, n))
            if n[0] <= capacity:
                break
            capacity = n[0]
        data = bytes(ffi.buffer(out, n[0]))
        if not special:
            self._pieces[token] = data
        return data

    def detokenize(self, tokens: Sequence[int], *, special: bool = True) -> str:
        """Text of tokens; bytes that are not UTF-8 become U+FFFD.

        Args:
            special: keep the text of control tokens, such as <|im_end|>.

        Raises:
            UsageError: no such token.
        """
        ids = as_tokens(tokens)
        arguments.boolean("special", special)
        with buffer() as out:
            with self.handle as model:
                check(lib.pc_detokenize(model, ids, len(ids), False, special, out))
            return taken(out).decode("utf-8", "replace")

    @property
    def fingerprint(self) -> str:
        """Identifies the file by its headers and sizes, without reading the weights."""
        return self.file.fingerprint()

    def __repr__(self) -> str:
        return f"<Model {self.path}{' (closed)' if self.closed else ''}>"
