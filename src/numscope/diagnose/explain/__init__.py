"""Why a suspect is wrong: one file per kind of suspect."""
