"""Are these the same weights? A conversion that fuses query, key and value, right in one layer and wrong in the other."""

import torch

import numscope as ns


def original() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    names = [f"layers.{n}.self_attn.{part}_proj.weight" for n in range(2) for part in "qkv"]
    return {name: torch.randn(32, 32) for name in names}


def converted(state: dict[str, torch.Tensor], orders: tuple[str, str]) -> dict[str, torch.Tensor]:
    return {
        f"layers.{n}.self_attn.qkv_proj.weight": torch.cat(
            [state[f"layers.{n}.self_attn.{part}_proj.weight"] for part in order]
        )
        for n, order in enumerate(orders)
    }


def main() -> None:
    state = original()
    right = ns.weights(converted(state, ("qkv", "qkv")), state)
    print(f"{right.verdict}: {right.pairs[0].reason}")
    wrong = ns.weights(converted(state, ("qkv", "kqv")), state)
    print(f"{wrong.verdict}: {wrong.reason}")


if __name__ == "__main__":
    main()
