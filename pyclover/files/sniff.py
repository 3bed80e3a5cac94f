"""Name what a file is when it is not a GGUF: people pass web pages, pointers and other formats by mistake."""

from __future__ import annotations

_DOWNLOAD = "download the .gguf file itself"
_CONVERT = "convert it to GGUF first: clover-run convert for Clover, llama.cpp's convert_hf_to_gguf.py for other models"


def describe(start: bytes) -> str:
    """What a file beginning with `start` (its first 512 bytes or so) looks like and what to do about it.

    Returns:
        the end of a sentence that began with "not a GGUF file: ".
    """
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not start.strip(b"\0"):
        return "it begins with zero bytes, as an unfinished download does; download it again"
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return f"this looks like a web page; {_DOWNLOAD}"
    if start.startswith(b"version https://git-lfs"):
        return f"this is a git-lfs pointer, not the file it points to; run 'git lfs pull' or {_DOWNLOAD}"
    if start.startswith(b"PK\x03\x04"):
        return f"this is a zip archive, as PyTorch checkpoints are; unpack it, or {_CONVERT}"
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return f"this is a pickled PyTorch checkpoint; {_CONVERT}"
    if start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf")):
        return "this is a compressed archive; unpack it first"
    if start[:4] in (b"lmgg", b"fmgg", b"tjgg", b"algg", b"ggml", b"ggmf", b"ggjt"):
        return f"this is a GGML file from before GGUF, which nothing here reads; {_DOWNLOAD} of the model instead"
    if len(start) > 9 and start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 32:
        return f"this is a safetensors file; {_CONVERT}"
    if start.startswith(b"FUGG"):
        return "its magic is reversed ('FUGG'), so its bytes are in the wrong order; download it again"
    if text.startswith((b"{", b"[")):
        return f"this looks like JSON, such as a server's error message; {_DOWNLOAD}"
    if all(32 <= b < 127 or b in b"\t\r\n" for b in start):
        return f"this is a text file; {_DOWNLOAD}"
    return f"it begins with {start[:4]!r} instead of 'GGUF'; give a .gguf file, or download this one again"
