"""Fetching: files of other machines land, whole and verified, in a folder of the lake before an inventory is taken of them."""

from resources.fetch.landing import Landing, land

__all__ = ["Landing", "land"]
