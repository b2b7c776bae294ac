"""`python -m gateway` is the same as the `gateway` command."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; 2 where what it needs is not installed, as beside a worker."""
    try:
        from gateway import cli
    except ModuleNotFoundError as exc:
        missing = (exc.name or "gateway").partition(".")[0]
        if missing == "gateway":
            raise
        sys.stderr.write(f"gateway: no {missing}: pip install 'celery-gateway[serve]'\n")
        return 2
    return cli.main()


if __name__ == "__main__":
    raise SystemExit(main())
