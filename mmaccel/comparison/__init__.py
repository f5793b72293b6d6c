"""A target beside itself with methods: who runs, how each run is judged, and what people see of it."""
