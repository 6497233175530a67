"""Errors that a client is told: a status and a sentence, in OpenAI's form or, for the explorer's page, in its own."""

from starlette.exceptions import HTTPException
from starlette.responses import Response

from clearhead.errors import ClearheadError, OptionError
from clearhead.serve.replies import as_json
from clearhead.system import is_out_of_memory

LONGEST = 1_000
"""The most characters of a message: it may quote what a stranger has sent."""
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
PAGE = ("/api/", "/b/api/")
"""How addresses begin that the explorer's page asks; it takes `{"error": message}`."""


class ApiError(OptionError):
    """A request that is refused: its status, a message for the client, cut off if it is long, and the option to blame.

    `retry_after` is in seconds; with it the client may send the same request again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message if len(message) <= LONGEST else f"{message[:LONGEST]}…")
        self.status, self.param, self.code, self.retry_after = status, param, code, retry_after


class ClientGone(Exception):
    """The client has hung up, or was dropped: there is nobody to answer."""


def error_object(error: ApiError) -> dict[str, object]:
    """Return the body of the reply.

    >>> error_object(ApiError(400, "n: 1 or more", param="n"))["error"]["type"]
    'invalid_request_error'
    """
    kind = TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def error_reply(error: ApiError, path: str = "") -> Response:
    """Return the reply, in the form of the address that was asked."""
    reply = as_json({"error": str(error)} if path.startswith(PAGE) else error_object(error), error.status)
    if error.retry_after is not None:
        reply.headers["Retry-After"] = str(error.retry_after)
    if error.status == 401:
        reply.headers["WWW-Authenticate"] = "Bearer"
    return reply


def as_reply(error: Exception) -> ApiError:
    """Return the error to send to the client."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ClearheadError):
        return ApiError(400, str(error), code="invalid_value")
    if isinstance(error, HTTPException):  # of Starlette's router: an unknown address or method
        return ApiError(error.status_code, error.detail, code="not_found" if error.status_code == 404 else None)
    if is_out_of_memory(error):
        return ApiError(503, "there was not enough memory; try again later", code="out_of_memory", retry_after=5)
    return ApiError(500, "this should not happen: the server's log has where")
