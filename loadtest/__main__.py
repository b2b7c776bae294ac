"""`python -m loadtest`: what run.sh runs."""

try:
    from loadtest.cli import main
except ModuleNotFoundError as exc:
    raise SystemExit(f"loadtest: the module {exc.name} is missing: run `make install`") from None

if __name__ == "__main__":
    raise SystemExit(main())
