"""The health check of a container: asks a server's /health at METRICS_PORT. Without that variable all is well."""

from __future__ import annotations

import os
import sys
from http.client import HTTPConnection, HTTPException


def main() -> int:
    """Return 0 if the process answers, else 1."""
    port = os.environ.get("METRICS_PORT", "")
    if not port:
        return 0
    connection = HTTPConnection("127.0.0.1", int(port), timeout=4)
    try:
        connection.request("GET", "/health")
        return 0 if connection.getresponse().status == 200 else 1
    except (OSError, HTTPException) as error:
        sys.stderr.write(f"port {port} does not answer: {error}\n")
        return 1
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
