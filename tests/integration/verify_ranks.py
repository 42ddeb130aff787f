"""Two gloo ranks whose backend loses what rank 1 gives, or sends rank 1 something else; and a healthy one."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import numscope as ns


def drop_a_rank(method):
    def allreduce(group, tensors, *args):
        if dist.get_rank() == 1:
            tensors[0].zero_()
        return method(group, tensors, *args)

    return allreduce


def send_another(method):
    def broadcast(group, tensors, *args):
        work = method(group, tensors, *args)
        work.wait()
        if dist.get_rank() == 1:
            tensors[0].view(-1)[3] = 7.0
        return work

    return broadcast


def drop_what_is_scattered(method):
    def scatter(group, outputs, inputs, *args):
        if dist.get_rank() == 1:
            for tensor in torch.utils._pytree.tree_leaves(inputs):
                tensor.zero_()
        return method(group, outputs, inputs, *args)

    return scatter


def change_what_arrives(method):
    def exchange(group, outputs, *args):
        work = method(group, outputs, *args)
        work.wait()
        if dist.get_rank() == 1:
            torch.utils._pytree.tree_leaves(outputs)[0].view(-1)[2] += 1.0
        return work

    return exchange


FAULTS = {
    "healthy": {},
    "dropped": {"allreduce": drop_a_rank},
    "another": {"broadcast": send_another},
    "scattered": dict.fromkeys(
        ("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single"), drop_what_is_scattered
    ),
    "exchanged": dict.fromkeys(
        ("alltoall", "alltoall_base", "all_to_all_single", "_allgather_base", "all_gather_single"), change_what_arrives
    ),
}


def work(rank, world, port, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for name, fault in FAULTS.items():
        before = {method: getattr(dist.ProcessGroup, method) for method in fault if hasattr(dist.ProcessGroup, method)}
        for method, make in ((method, fault[method]) for method in before):
            setattr(dist.ProcessGroup, method, make(before[method]))
        torch.manual_seed(10 + rank)
        with ns.capture(os.path.join(out, name), verify=True, on_error="raise") as cap:
            for _ in range(2):
                x = torch.randn(40, 30)
                dist.broadcast(torch.randn(8), 0)
                dist.all_gather([torch.empty(40, 30) for _ in range(world)], x)
                dist.all_reduce(x.exp_())
                dist.all_reduce(torch.randn(5, 5).bfloat16())
                parts = [torch.randn(12, 9) for _ in range(world)]
                dist.reduce_scatter(torch.empty(12, 9), parts)
                dist.reduce_scatter_tensor(torch.empty(12, 9), torch.randn(24, 9))
                dist.all_to_all([torch.empty(12, 9) for _ in range(world)], parts)
                dist.all_to_all_single(torch.empty(24, 9), torch.cat(parts))
                dist.all_gather_into_tensor(torch.empty(24, 9), parts[0])
                cap.step()
        for method, original in before.items():
            setattr(dist.ProcessGroup, method, original)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (2, int(sys.argv[1]), sys.argv[2]), nprocs=2)
