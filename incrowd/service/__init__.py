"""Draw and discard over a network: the service, and the devices that answer it."""
