"""The app server: Celery workers that run the relay's tasks and answer over AMQP.

``celery -A appserver worker`` starts one.
"""

from appserver.answers import Answer
from appserver.app import app

__all__ = ["Answer", "app"]
