"""Audits: attacks that bound epsilon from below, beside the claimed epsilon."""
