"""The HTTP resources of the gateway, which handle the methods of paths. Each file has the resources
of one topic."""
