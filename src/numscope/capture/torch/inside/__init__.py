"""Compiled regions seen inside: their graphs as Inductor has compiled them, and what its kernels left in each buffer."""
