"""Translates the exceptions of huggingface_hub to one-sentence error messages that say what to do."""

from __future__ import annotations

import errno
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import StartupError
from ..tokenization.model_files import one_line
from .cache import hub_cache_dir
from .names import HubName

GIVE_TOKEN = "set HF_TOKEN to a token of https://huggingface.co/settings/tokens, or run `hf auth login`"
CHECK_NETWORK = "Check the network, the proxy and HF_ENDPOINT. A model that was pulled is served without a network."


def connection_errors() -> tuple[type[Exception], ...]:
    """Return the exception classes for a connection that could not be opened, broke or timed out.

    They come from the HTTP package that huggingface_hub uses, which depends on its version.
    """
    from huggingface_hub.utils import get_session

    package = importlib.import_module(type(get_session()).__module__.partition(".")[0])
    return (package.TransportError,)


@contextmanager
def translated(name: HubName) -> Iterator[None]:
    """Translate every exception that the download of ``name`` raises in the block to a StartupError."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    unreachable: tuple[type[Exception], ...] = (ConnectionError, LocalEntryNotFoundError, *connection_errors())
    try:
        yield
    except StartupError:
        raise
    except HfHubHTTPError as error:
        raise StartupError(_refusal(name, error)) from error
    except HFValidationError as error:
        raise StartupError(f"{name.repository!r} is not a valid repository name: {one_line(error)}.") from error
    except OfflineModeIsEnabled as error:
        raise StartupError(f"The model {name} is not in the cache, and HF_HUB_OFFLINE forbids downloads.") from error
    except unreachable as error:
        text = f"The model {name} is not in the cache, and the Hub at {endpoint()} could not be reached"
        raise StartupError(f"{text}: {one_line(error)}. {CHECK_NETWORK}") from error
    except OSError as error:
        raise StartupError(_disk_failure(name, error)) from error
    except Exception as error:  # huggingface_hub does not validate responses with status 200
        text = f"The Hub at {endpoint()} sent an invalid response for {name.repository}"
        raise StartupError(f"{text}: {one_line(error) or type(error).__name__}.") from error


def endpoint() -> str:
    """Return the address of the Hub."""
    from huggingface_hub import constants

    return os.environ.get("HF_ENDPOINT") or constants.ENDPOINT


def _refusal(name: HubName, error: OSError) -> str:
    """Return the error message for an error status of the Hub."""
    from huggingface_hub.errors import DisabledRepoError, GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    assert isinstance(error, HfHubHTTPError)
    if isinstance(error, GatedRepoError):
        page = f"{endpoint()}/{name.repository}"
        return f"The repository {name.repository} is gated: accept its conditions on {page}, then {GIVE_TOKEN}."
    if isinstance(error, RepositoryNotFoundError):
        return f"The Hub has no repository {name.repository}, or it is private. For a private one, {GIVE_TOKEN}."
    if isinstance(error, DisabledRepoError):
        return f"The repository {name.repository} is disabled on the Hub."
    status, reason = error.response.status_code, error.server_message or one_line(error)
    return f"The Hub at {endpoint()} answered {status} for {name.repository}: {reason}."


def _disk_failure(name: HubName, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return (
            f"The disk of {hub_cache_dir()} is full. Free some space, or set HF_HUB_CACHE to a folder on another disk."
        )
    return f"The model {name} could not be written to {hub_cache_dir()}: {error.strerror or one_line(error)}."
