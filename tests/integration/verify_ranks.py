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


FAULTS = {"healthy": {}, "dropped": {"allreduce": drop_a_rank}, "another": {"broadcast": send_another}}


def work(rank, world, port, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for name, fault in FAULTS.items():
        before = {method: getattr(dist.ProcessGroup, method) for method in fault}
        for method, make in fault.items():
            setattr(dist.ProcessGroup, method, make(before[method]))
        torch.manual_seed(10 + rank)
        with ns.capture(os.path.join(out, name), verify=True, on_error="raise") as cap:
            for _ in range(2):
                x = torch.randn(40, 30)
                dist.broadcast(torch.randn(8), 0)
                dist.all_gather([torch.empty(40, 30) for _ in range(world)], x)
                dist.all_reduce(x.exp_())
                dist.all_reduce(torch.randn(5, 5).bfloat16())
                cap.step()
        for method, original in before.items():
            setattr(dist.ProcessGroup, method, original)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (2, int(sys.argv[1]), sys.argv[2]), nprocs=2)
