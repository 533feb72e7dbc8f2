"""The emissions report as a person reads it: content -> HTML page, PDF and terminal, all from the same blocks."""
