"""The words of numscope as types: names, slots, dtypes, errors, settings, the report. Imports only the standard library and numpy."""
