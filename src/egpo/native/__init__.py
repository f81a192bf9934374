"""Kernels in C for CPUs: what torch needs several passes over memory for, in one. torch itself where they cannot be."""
