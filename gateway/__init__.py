"""An HTTP-to-Celery gateway for webhooks."""

__version__ = "1.0.0"
