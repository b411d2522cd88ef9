"""The registry of components, and the decoding of TOML tables into them."""

from titanrl.registry.catalog import FOLDERS, component_class, kind_of, kinds, load, name_of, names, register
from titanrl.registry.declarations import declared, declares
from titanrl.registry.ranges import Range, validated

__all__ = [
    "FOLDERS",
    "component_class",
    "declared",
    "declares",
    "kind_of",
    "kinds",
    "load",
    "name_of",
    "names",
    "register",
    "Range",
    "validated",
]
