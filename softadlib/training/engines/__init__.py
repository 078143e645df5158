"""Engines: how R runs of one method are stepped on one device."""
