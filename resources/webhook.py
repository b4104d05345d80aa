"""A receiver of alerts over HTTP."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

from pipeline.errors import DeliveryError, RecipeError

TIMEOUT_SECONDS = 10.0
BUSY = (408, 425, 429)  # the receiver is there and asks for patience: as good as down


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET and count as taken."""

    def redirect_request(self, *_arguments: object, **_named: object) -> None:
        return None


class Webhook:
    """POSTs JSON to one address. The address may hold a secret: it enters no message, table or log.

    Raises RecipeError when the address is none.
    """

    name = "webhook"

    def __init__(self, url: str, *, timeout: float = TIMEOUT_SECONDS) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RecipeError("RUNVIEW_WEBHOOK must be like https://host/path; its value is not shown, since it may hold a secret")
        self._url, self._timeout = url, timeout
        self._opener = urllib.request.build_opener(_NoRedirect())

    def send(self, message: Mapping[str, str]) -> None:
        """Deliver one alert; back only when the receiver said 2xx. Raises DeliveryError.

        `Idempotency-Key` is the alert's id, by which the receiver drops a repeated delivery.
        """
        headers = {"Content-Type": "application/json; charset=utf-8", "Idempotency-Key": message["alert_id"], "User-Agent": "runview"}
        data = json.dumps(dict(message), ensure_ascii=False, sort_keys=True).encode()
        request = urllib.request.Request(self._url, data=data, headers=headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                status = answer.status
        except urllib.error.HTTPError as error:
            error.close()
            status = error.code
        except urllib.error.URLError as error:
            raise DeliveryError(f"no answer ({type(error.reason).__name__})", down=True) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise DeliveryError(f"no answer ({type(error).__name__})", down=True) from None
        if not 200 <= status < 300:
            raise DeliveryError(f"the receiver answered {status}", down=status >= 500 or status in BUSY)
