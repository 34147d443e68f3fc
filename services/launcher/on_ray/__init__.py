"""The services of a run on the nodes of a Ray cluster. Only modules in this folder import Ray, and only when they are used."""
