"""Late answers: a result that comes after the answer is sent where the sender takes it."""
