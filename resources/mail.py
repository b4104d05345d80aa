"""A receiver of alerts by e-mail, through smtplib."""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Mapping
from email.message import EmailMessage
from urllib.parse import parse_qs, unquote, urlsplit

from pipeline.errors import DeliveryError, RecipeError

TIMEOUT_SECONDS = 10.0


class Mail:
    """`smtp://[user:password@]host[:port]?from=a@b&to=c@d[&to=e@f][&starttls=1]`, or `smtps://` for TLS from the first byte.

    The address may hold a password: it enters no message, table or log. Raises RecipeError when a part is missing.
    """

    name = "mail"

    def __init__(self, address: str, *, timeout: float = TIMEOUT_SECONDS) -> None:
        try:
            parts, port = urlsplit(address), urlsplit(address).port
            options = parse_qs(parts.query, strict_parsing=True)
        except ValueError:
            raise _wrong() from None
        if parts.scheme not in ("smtp", "smtps") or not parts.hostname or not options.get("from") or not options.get("to"):
            raise _wrong()
        self._host, self._secure, self._timeout = parts.hostname, parts.scheme == "smtps", timeout
        self._port = port or (465 if self._secure else 25)
        self._login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
        self._from, self._to = options["from"][0], options["to"]
        self._starttls = options.get("starttls", ["0"])[0] == "1"
        if self._login and not (self._secure or self._starttls):
            raise RecipeError("RUNVIEW_SMTP has a password and no TLS; use smtps:// or add starttls=1")

    def send(self, message: Mapping[str, str]) -> None:
        """Deliver one alert; back only when the server took it for every recipient. Raises DeliveryError.

        `Message-ID` is the alert's id, by which mailboxes drop a repeated delivery.
        """
        mail = EmailMessage()
        mail["From"], mail["To"] = self._from, ", ".join(self._to)
        mail["Subject"] = " ".join(f"[runview] {message['kind']}: {message['subject']} {message['partition']}".split())
        mail["Message-ID"] = f"<{message['alert_id']}@runview>"
        mail.set_content("\n".join(f"{name}: {value}" for name, value in message.items() if value and name != "text"))
        try:
            with self._connect() as server:
                if self._starttls:
                    server.starttls(context=ssl.create_default_context())
                if self._login:
                    server.login(*self._login)
                refused = server.send_message(mail)
        except smtplib.SMTPResponseException as error:
            raise DeliveryError(f"the server answered {error.smtp_code}", down=error.smtp_code < 500) from None
        except smtplib.SMTPRecipientsRefused as error:
            raise DeliveryError(f"the server refused {len(error.recipients)} recipients", down=False) from None
        except (OSError, smtplib.SMTPException) as error:
            raise DeliveryError(f"no answer ({type(error).__name__})", down=True) from None
        if refused:
            raise DeliveryError(f"the server refused {len(refused)} of {len(self._to)} recipients", down=False)

    def _connect(self) -> smtplib.SMTP:
        if self._secure:
            return smtplib.SMTP_SSL(self._host, self._port, timeout=self._timeout, context=ssl.create_default_context())
        return smtplib.SMTP(self._host, self._port, timeout=self._timeout)


def _wrong() -> RecipeError:
    return RecipeError(
        "RUNVIEW_SMTP must be like smtp://host:25?from=a@example.org&to=b@example.org; its value is not shown, since it may hold a password"
    )
