"""A chat template as the user gives it: text or a file, and one that can be read at all."""

from __future__ import annotations

import os
from pathlib import Path

from pyclover import arguments
from pyclover.errors import PathLike, UsageError

_OPTION = "chat_template"
MAX_TEMPLATE_BYTES = 4 << 20


def read_template(given: PathLike) -> str:
    """The text of a template: `given` itself when it has a tag or a line break, else the file of that name.

    Raises:
        UsageError: there is no such file, or jinja2 cannot read the template.
    """
    if isinstance(given, os.PathLike) or not any(mark in arguments.text(_OPTION, given) for mark in ("{{", "{%", "\n")):
        source = _read_file(arguments.path(_OPTION, given).expanduser())
    else:
        source = given
    if not source.strip():
        raise UsageError(f"{_OPTION} is empty: give a jinja template", option=_OPTION)
    if "\0" in source:
        raise UsageError(f"{_OPTION} has a zero byte, which no template has: give a text file", option=_OPTION)
    if fault := template_fault(source):
        raise UsageError(f"{_OPTION} cannot be read as a jinja template: {fault}", option=_OPTION)
    return source


def template_fault(source: str) -> str:
    """What jinja2 says against a template, "" when it can be read. Nothing of the template runs."""
    import jinja2
    import jinja2.sandbox

    try:
        jinja2.sandbox.ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(source)
    except jinja2.TemplateSyntaxError as e:
        return f"line {e.lineno}: {e.message}"
    except (RecursionError, MemoryError):
        return "it is nested too deeply"
    return ""


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:  # a device or a pipe does not say how much will come
            raw = file.read(MAX_TEMPLATE_BYTES + 1)
        if len(raw) > MAX_TEMPLATE_BYTES:
            raise UsageError(f"{path} is larger than any chat template: give a jinja file", option=_OPTION)
        return raw.decode("utf-8")
    except OSError as e:
        raise UsageError(f"{path}: the chat template cannot be read: {e.strerror or e}", option=_OPTION) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: the chat template is not UTF-8 text", option=_OPTION) from None
