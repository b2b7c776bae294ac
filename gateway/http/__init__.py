"""The HTTP/1 server: connections, requests and answers, limits, malformed requests."""
