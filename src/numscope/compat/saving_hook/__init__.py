"""The saving hook: outputs of chosen leaf layers and the gradients of their parameters, as .npy files.

    from numscope.compat.saving_hook import register_saving_hook

    model = register_saving_hook(model, path="./tmp_tensors", target_class_names=["LayerNorm"], max_saved_tensors=100)

For Paddle layers and torch modules alike. Then compare two folders and draw what came out:

    python -m numscope.compat.saving_hook.hook_result_checker --pathA tmp_tensors --pathB tmp_tensors_0
    python -m numscope.compat.saving_hook.plot_rst --rst_path tmp_tensors/tensors/compare_rst/rank_0_rst.csv \
        --target_name LayerNorm --values_per_step 4
"""

from __future__ import annotations

from numscope.compat.saving_hook.hook import register_hook, register_saving_hook

__all__ = ["register_hook", "register_saving_hook"]
