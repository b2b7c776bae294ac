"""Private servers on free loopback ports, for `gateway dev`; `loadtest.stack` has further ones.

    with Stack() as stack:
        broker, results = stack.rabbitmq(), stack.embedded()
        gateway = stack.gateway("--broker", broker.url, "--result-backend", results.url)

All files are below one temporary directory, and no server runs after the end of the `with` block. A
server is ready when the method that starts it returns.
"""

from gateway.stack.loopback import free_port
from gateway.stack.programs import ProgramMissing
from gateway.stack.server import Server, StackError
from gateway.stack.stack import Stack

__all__ = ["ProgramMissing", "Server", "Stack", "StackError", "free_port"]
