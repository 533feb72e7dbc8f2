"""Research on top of the product: the reproduced paper, other methods as policies, and our studies.

Nothing outside this package imports it, except the lazy loaders in `slackwater/__init__.py` and `slackwater/cli/options.py`.
"""
