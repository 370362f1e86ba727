"""incrowd: learn one model from many parties without learning anything about any one of them."""

__version__ = "0.1.0.dev0"
