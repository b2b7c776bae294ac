"""What `gateway dev` is made of: what to start, one task that runs, what to tell the user."""
