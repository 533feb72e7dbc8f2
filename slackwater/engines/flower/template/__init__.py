"""Federated learning within a carbon budget."""
