"""Small real models with their training steps, for the capture tests: name → function that makes (model, step)."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class MLP(nn.Module):
    def __init__(self, activation=None):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.act = activation or nn.ReLU()
        self.second = nn.Linear(16, 4)

    def forward(self, x):
        return self.second(self.act(self.first(x)))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.body(x))


class InPlaceViews(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        y = self.lin(x)
        y[:, :4].mul_(2.0)
        y[:, 4:] = y[:, :4] * 0.5
        z = y.view(-1, 2, 4)
        z.add_(1.0)
        return F.relu_(z.reshape(-1, 8)).narrow(1, 0, 4)


class Block(nn.Module):
    def __init__(self, width, mode):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True, dropout=0.1)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)
        self.mode = mode

    def inner(self, x):
        h = self.norm(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.drop(self.down(F.gelu(self.up(x))))

    def forward(self, x):
        if self.mode is None:
            return self.inner(x)
        return checkpoint(self.inner, x, use_reentrant=self.mode == "reentrant")


class Transformer(nn.Module):
    def __init__(self, mode=None, tied=False):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList([Block(16, mode) for _ in range(2)])
        self.head = nn.Linear(16, 20, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor, x.sum()

    @staticmethod
    def backward(ctx, gradient, total):
        (x,) = ctx.saved_tensors
        return gradient * ctx.factor + total.expand_as(x), None


class CustomFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 4)

    def forward(self, x):
        y, total = Scaled.apply(self.lin(x), 3.0)
        return y + total * 0.01


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn = kind(8, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, dtype=torch.complex64) * 0.3)
        self.lin = nn.Linear(8, 4)

    def forward(self, x):
        return self.lin(torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=8))


class SparseEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(20, 8, mode="sum", sparse=True)
        self.lin = nn.Linear(8, 4)

    def forward(self, ids):
        return self.lin(self.embed(ids))


def _classify(model, optimizer, batches, accumulate=1, amp=False, scaler=None):
    def step(index):
        for part in range(accumulate):
            x, y = batches(index * accumulate + part)
            with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                loss = F.cross_entropy(model(x).reshape(y.numel(), -1).float(), y.reshape(-1)) / accumulate
            (scaler.scale(loss) if scaler else loss).backward()
        nn.utils.clip_grad_norm_([p for p in model.parameters() if not (p.grad is not None and p.grad.is_sparse)], 1.0)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _vectors(index, shape=(6, 8), classes=4):
    generator = torch.Generator().manual_seed(100 + index)
    return torch.randn(shape, generator=generator), torch.randint(0, classes, (shape[0],), generator=generator)


def _tokens(index):
    generator = torch.Generator().manual_seed(100 + index)
    ids = torch.randint(0, 20, (2, 7), generator=generator)
    return ids[:, :-1], ids[:, 1:]


def _bags(index):
    generator = torch.Generator().manual_seed(100 + index)
    return torch.randint(0, 20, (6, 3), generator=generator), torch.randint(0, 4, (6,), generator=generator)


def _images(index):
    return _vectors(index, (4, 3, 8, 8))


def _sequences(index):
    return _vectors(index, (4, 5, 8))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(index):
        generator = torch.Generator().manual_seed(100 + index)
        ids = torch.randint(0, 32, (2, 6), generator=generator)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return model, optimizer, step


def _case(make, batches, optimizer=torch.optim.AdamW, **options):
    def build():
        model = make()
        opt = optimizer(model.parameters(), lr=1e-2)
        return model, opt, _classify(model, opt, batches, **options)

    return build


CASES = {
    "mlp": _case(MLP, _vectors),
    "transformer with dropout": _case(Transformer, _tokens),
    "conv and batchnorm, in-place relu": _case(ConvNet, _images, torch.optim.SGD),
    "in-place on views": _case(InPlaceViews, _vectors),
    "checkpoint, reentrant": _case(lambda: Transformer("reentrant"), _tokens),
    "checkpoint, not reentrant": _case(lambda: Transformer("non-reentrant"), _tokens),
    "autograd.Function": _case(CustomFunction, _vectors),
    "tied weights": _case(lambda: Transformer(tied=True), _tokens),
    "lstm": _case(lambda: Recurrent(nn.LSTM), _sequences),
    "gru": _case(lambda: Recurrent(nn.GRU), _sequences),
    "sparse embedding": _case(SparseEmbedding, _bags, torch.optim.SGD),
    "complex and fft": _case(Spectral, _vectors),
    "autocast": _case(Transformer, _tokens, amp=True),
    "autocast and GradScaler": lambda: _scaled(),
    "gradient accumulation": _case(Transformer, _tokens, accumulate=2),
    "llama from transformers": llama,
}


def _scaled():
    model = MLP(nn.Tanh())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=float(2**8))
    return model, optimizer, _classify(model, optimizer, _vectors, amp=True, scaler=scaler)


def state_of(model, optimizer):
    """Return everything that training has changed, by name."""
    found = {name: value.detach().clone() for name, value in model.state_dict().items()}
    for index, state in enumerate(optimizer.state.values()):
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                found[f"optimizer.{index}.{name}"] = value.clone()
    found["rng"] = torch.get_rng_state()
    return found


def same(a, b):
    """Tell whether two tensors are the same to the bit, NaNs and signs of zero included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(width), b.contiguous().view(width)) or math.prod(a.shape) == 0
