"""Tensor parallelism: one process per rank, and every rank computes each plan with a part of the weights.

The column- and row-parallel split of a layer is that of Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053).
"""
