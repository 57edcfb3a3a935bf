"""Random graphs from the registry of operators, compiled and compared with torch."""
