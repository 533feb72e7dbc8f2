"""Federated learning by a schedule that keeps a carbon budget."""
