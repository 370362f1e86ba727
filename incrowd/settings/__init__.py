"""Settings that are read as they are by whoever they are for: a section of a file is the object that does the work."""
