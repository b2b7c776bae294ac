"""Start a Celery worker from a script, as an application that has no command of its own does.

    python -m loadtest.lab.pools.script patched|unpatched POOL [OPTION]...

Options are those of ``celery worker``. ``patched``: the pool's monkey patches are made before
anything else is imported, as ``celery -P POOL`` makes them. The script's name for the pool is no
option ``-P`` before the worker sees it, so that nothing else patches.
"""

import sys


def main() -> None:
    how, pool, *options = sys.argv[1:]
    if how == "patched" and pool == "gevent":
        from gevent import monkey

        monkey.patch_all()
    elif how == "patched":
        import eventlet

        eventlet.monkey_patch()
    from loadtest.lab.pools.app import app

    app.worker_main(["worker", "--pool", pool, *options])


if __name__ == "__main__":
    main()
