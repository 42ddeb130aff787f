"""A run as tables: the largest gradient, the calls of a module, and one tensor as an array."""

import pyarrow.compute as pc
import torch
from torch import nn

import numscope as ns


def capture() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    with ns.capture("runs/tables", model, tensors=["Functional.relu.*"], overwrite=True) as cap:
        model(torch.randn(4, 8)).square().mean().backward()
        cap.step()


def main() -> None:
    capture()
    run = ns.open_run("runs/tables")
    print(f"{run.calls.num_rows} calls, {run.tensors.num_rows} slots, steps {list(run.steps)}")

    gradients = run.tensors.filter(pc.match_substring(run.tensors["name"], ".backward.output."))
    largest = gradients.sort_by([("l2", "descending")]).slice(0, 1).to_pylist()[0]
    print(f"the largest gradient: {largest['name']}, l2 {largest['l2']:.3g}")

    calls = run.calls.filter(pc.equal(run.calls["module"], "0"))
    print("calls in the first layer:", calls["name"].to_pylist())

    array = run.tensor("Functional.relu.0.forward.output.0")
    print(f"relu's output: {array.dtype} {array.shape}, {(array == 0).mean():.0%} zeros")


if __name__ == "__main__":
    main()
