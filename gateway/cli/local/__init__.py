"""The parts of `gateway dev`: the plan of servers, a first task, the lines for the user."""
