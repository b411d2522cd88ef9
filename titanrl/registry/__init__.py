"""The registry of components, and the decoding of TOML tables into them."""

from titanrl.registry.catalog import FOLDERS, component_class, kind_of, kinds, load, name_of, names, register

__all__ = ["FOLDERS", "component_class", "kind_of", "kinds", "load", "name_of", "names", "register"]
