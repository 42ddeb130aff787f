"""The description of a model's modules that a run holds: `RUN/rank0/modules.json`, written by capture, read by diagnose.

    {"format": "numscope.modules/1", "script": "/job/train.py",
     "modules": {"blocks.0.mlp": {"class": "__main__:MLP", "file": "/job/train.py", "training": true, "hooks": 0,
                 "children": {"up": "blocks.0.mlp.up"}, "parameters": {}, "buffers": {}, "attributes": {"p": 0.1}}},
     "objects": [{"class": "config:Config", "file": "/job/config.py", "state": {"width": 64}}]}

A value that JSON has is written as it is, any other as an object whose one key is its kind: `list`, `tuple`, `items` (of
a dict), `dtype`, `import`, `enum`, `module` (a path), `tensor` (the path and name of a parameter or buffer), `object` (an
index into `objects`); `not` holds the type of a value that has no plain form.
"""

from __future__ import annotations

from typing import TypedDict

from numscope.core.json_value import Json

FILE = "modules.json"
FORMAT = "numscope.modules/1"

ModuleEntry = TypedDict(
    "ModuleEntry",
    {
        "class": str,  # `package.module:Outer.Inner`
        "file": str | None,
        "training": bool,
        "children": dict[str, str | None],  # the path of each; None where the attribute is None
        "parameters": dict[str, bool],  # False where the parameter is None
        "buffers": dict[str, bool],
        "hooks": int,
        "attributes": dict[str, Json],
    },
)

ObjectEntry = TypedDict("ObjectEntry", {"class": str, "file": str | None, "state": dict[str, Json]})
