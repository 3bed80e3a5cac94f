"""Whether a chat template comes to an end: llama.cpp's server runs it at its start already, and without limits."""

from __future__ import annotations

from pyclover.chat.apart import TemplateLimitError, TemplateProcess
from pyclover.chat.prepared import prepare
from pyclover.errors import CloverError, TemplateError
from pyclover.files.gate import ValidatedModel

IN_FILE = ("tokenizer.chat_template", "tokenizer.chat_template.tool_use")
QUESTION = ({"role": "user", "content": "hi"},)


def check_template(given: str | None, file: ValidatedModel) -> None:
    """Renders a short conversation in a process with limits, with llama.cpp's engine too.

    Args:
        given: in place of the file's own.

    Raises:
        TemplateError: it takes too long or too much memory. Of everything else that may be wrong with a template the
            server knows more: what jinja2 refuses may be good for it.
    """
    metadata = file.headers[0].metadata
    found = [metadata.get(key) for key in IN_FILE] if given is None else [given]
    sources = [source for source in found if isinstance(source, str) and source]
    if not sources:
        return
    with TemplateProcess() as process:
        for source in sources:
            try:
                prepare(process, source, QUESTION)
            except TemplateLimitError as error:
                raise TemplateError(
                    f"{error}: the server is not started with it; --chat-template-file gives another one"
                ) from None
            except CloverError:
                continue
