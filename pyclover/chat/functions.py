"""Python functions as tools: their description for the model, and the call that the model asked for.

The schema of the arguments and their check come from pydantic, which reads the type hints.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyclover.errors import UsageError, shortened

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters)\s*:\s*$")
_PARAMETER = re.compile(r"^(\s+)\*{0,2}(\w+)(?:\s*\([^)]*\))?\s*:\s*(.*)$")
MAX_RESULT = 1 << 20  # characters of a result that go to the model
MAX_ERROR = 4000  # of an error


def _pydantic() -> Any:
    try:
        import pydantic
    except ImportError:
        raise UsageError(
            "Python functions as tools need the package pydantic: pip install 'pyclover[chat]', or describe the tools "
            'yourself (tools=[{"type": "function", …}]) and run them in your own code',
            option="functions",
        ) from None
    return pydantic


@dataclass(frozen=True)
class FunctionTool:
    """A function that the model may call.

    Attributes:
        name: as the model sees it.
        tool: its description as in OpenAI's API.
        function: what is called, its arguments checked and converted first.
    """

    name: str
    tool: Mapping[str, Any]
    function: Callable[..., Any]


def function_tool(function: Callable[..., Any]) -> FunctionTool:
    """The tool that a function makes: its name, the first paragraph of its docstring, and its parameters.

    Every parameter needs a type hint that JSON has a form for. Descriptions of parameters are taken from a section
    "Args:" of the docstring.

    Raises:
        UsageError: no function, without hints, or with parameters that a model cannot fill in.
    """
    if isinstance(function, FunctionTool):
        return function
    if not callable(function):
        raise UsageError(f"functions has {shortened(function)}, which cannot be called", option="functions")
    name = getattr(function, "__name__", type(function).__name__)
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"functions has one named {name!r}: give it a name of letters, digits and _", option="functions"
        )
    if inspect.iscoroutinefunction(function):
        raise UsageError(f"the function {name} is asynchronous: give a plain one", option="functions")
    pydantic = _pydantic()
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise UsageError(
            f"the function {name} does not tell its parameters: wrap it in one that does", option="functions"
        ) from None
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(
                f"the function {name} takes {parameter}, which a model cannot give by name: use plain parameters",
                option="functions",
            )
        if parameter.annotation is parameter.empty:
            raise UsageError(
                f"the parameter {parameter.name} of the function {name} has no type hint: add one", option="functions"
            )
    try:
        checked = pydantic.validate_call(function)
        schema = pydantic.TypeAdapter(function).json_schema()
    except Exception as error:  # pydantic has several classes, and raises those of typing too
        raise UsageError(
            f"the parameters of the function {name} have no form in JSON: {error}", option="functions"
        ) from None
    summary, about = _described(inspect.getdoc(function) or "")
    for parameter_name, text in about.items():
        if parameter_name in schema.get("properties", {}):
            schema["properties"][parameter_name].setdefault("description", text)
    description = {"name": name, "description": summary, "parameters": schema}
    return FunctionTool(name, {"type": "function", "function": description}, checked)


def _described(doc: str) -> tuple[str, dict[str, str]]:
    """First paragraph, and the parameters of a section "Args:"."""
    summary = " ".join(doc.split("\n\n")[0].split())
    about: dict[str, str] = {}
    inside, at, indent = False, "", 0
    for line in doc.splitlines():
        if _SECTION.match(line):
            inside = True
        elif inside and line.strip() and not line.startswith(" "):
            inside = False
        elif inside and (found := _PARAMETER.match(line)) and (not at or len(found[1]) <= indent):
            indent, at = len(found[1]), found[2]
            about[at] = found[3].strip()
        elif inside and at and line.strip():
            about[at] = f"{about[at]} {line.strip()}".strip()
    return summary, about


def run_function(tool: FunctionTool, arguments: str) -> tuple[str, bool]:
    """Calls a function with the arguments that the model wrote -> the text for the model, and whether it worked.

    Arguments that are wrong, and exceptions of the function, become text too: the model may mend its call.
    """
    pydantic = _pydantic()
    try:
        given = json.loads(arguments or "{}")
    except (ValueError, RecursionError) as error:
        return _failed(f"the arguments are not JSON: {error}"), False
    if not isinstance(given, dict):
        return _failed("the arguments must be a JSON object"), False
    try:
        result = tool.function(**given)
    except pydantic.ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return _failed(f"wrong arguments: {wrong}"), False
    except Exception as error:
        return _failed(f"{type(error).__name__}: {_text(error)}"), False
    return _shown(result), True


def _text(value: object) -> str:
    """As text that has a UTF-8 form, whatever its class makes of it."""
    try:
        text = str(value)
    except Exception as error:
        text = f"<{type(value).__name__} without a text: {type(error).__name__}>"
    return text.encode("utf-8", "replace").decode()


def _failed(why: str) -> str:
    return json.dumps({"error": _text(why)[:MAX_ERROR]}, ensure_ascii=False)


def _shown(result: Any) -> str:
    if isinstance(result, str):
        text = _text(result)
    else:
        try:
            text = _pydantic().TypeAdapter(Any).dump_json(result).decode()
        except Exception:  # what pydantic cannot write as JSON
            text = _text(result)
    return text if len(text) <= MAX_RESULT else text[:MAX_RESULT] + " … (cut)"
