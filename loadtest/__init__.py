"""The load test: private servers, wrk in front of them, every answer checked. See run.sh."""
