"""Links to the services: one long-lived stream to each replica, shared by all requests."""
