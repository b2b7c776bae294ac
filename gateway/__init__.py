"""An HTTP-to-Celery gateway for webhooks."""

__version__ = "0.1.0"
