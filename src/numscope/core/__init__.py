"""The words of numscope as types: names, errors, settings, the report. Needs the standard library and numpy only."""
