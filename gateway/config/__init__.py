"""Settings and routes: their validation, their loading, and checks of their combinations."""
