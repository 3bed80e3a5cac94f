"""Models on a hub: what there is, downloads that are whole and right or not there at all, remote files."""

import os

from pyclover.errors import UsageError

try:  # it reads its variables when it is imported, and that of a number only as one
    from huggingface_hub import constants as _constants  # noqa: F401
except ValueError as error:
    wrong = [name for name, value in os.environ.items() if name.startswith("HF_") and str(value) in str(error)]
    raise UsageError(
        f"a variable of huggingface_hub cannot be read ({error}): correct or unset {' or '.join(wrong) or 'HF_…'}"
    ) from None
