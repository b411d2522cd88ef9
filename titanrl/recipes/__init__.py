"""Recipes: several training stages in a row, each starting from the model of an earlier one."""
