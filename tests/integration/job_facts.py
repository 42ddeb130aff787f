"""Two gloo ranks: one job over a mesh of parameters, one in a pipeline, and one of which a rank ends with an error."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import numscope as ns


def mesh(out):
    sharded = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("shard",)))
    with ns.capture(os.path.join(out, "mesh"), sharded, on_error="raise") as cap:
        sharded(torch.ones(2, 4)).sum().backward()
        cap.step()


def pipeline(out, rank):
    part = nn.Linear(4, 4)
    schedule = ScheduleGPipe(PipelineStage(part, rank, 2, torch.device("cpu")), 4, loss_fn=nn.functional.mse_loss)
    with ns.capture(os.path.join(out, "pipeline"), part, on_error="raise") as cap:
        data = torch.ones(8, 4)
        schedule.step(data) if rank == 0 else schedule.step(target=data)
        cap.step()


def ending(out, rank):
    model = nn.Linear(4, 4)
    try:
        with ns.capture(os.path.join(out, "ending"), model, ranks=None if rank else [0, 1]) as cap:
            for step in range(2):
                model(torch.ones(2, 5 if rank and step else 4))
                cap.step()
    except RuntimeError:
        pass


def work(rank, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2)
    mesh(out)
    pipeline(out, rank)
    ending(out, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=2)
