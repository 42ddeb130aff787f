"""Makes flax.msgpack, flax.npz and orbax/: one small model as flax, numpy and orbax write it.

python make_flax.py FOLDER     with flax 0.12.8, orbax-checkpoint 0.12.8, jax 0.10.2
"""

import sys
from pathlib import Path

import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp


class Net(nn.Module):
    """An embedding, two blocks, and a head in bfloat16."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Embed(24, 16, name="embed")(x)
        for layer in range(2):
            inner = nn.Dense(40, name=f"up_{layer}")(nn.LayerNorm(name=f"norm_{layer}")(x))
            x = x + nn.Dense(16, name=f"down_{layer}")(jax.nn.gelu(inner))
        return nn.Dense(24, use_bias=False, name="head", param_dtype=jnp.bfloat16)(x)


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    params = Net().init(jax.random.PRNGKey(0), jnp.zeros((1, 3), jnp.int32))["params"]
    draw = np.random.default_rng(0)
    params = jax.tree.map(lambda p: p + jnp.asarray(0.1 * draw.normal(size=p.shape), p.dtype), params)
    state = {"params": params, "opt_state": optax.sgd(1e-3, momentum=0.9).init(params), "step": 3}
    (out / "flax.msgpack").write_bytes(flax.serialization.to_bytes(state))
    leaves = jax.tree_util.tree_leaves_with_path(params)
    arrays = {".".join(str(key.key) for key in path): np.asarray(value, np.float32) for path, value in leaves}
    np.savez(out / "flax.npz", **arrays)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(str((out / "orbax").absolute()), {"params": params, "step": 3})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
