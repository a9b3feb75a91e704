"""What an ATen op is, from its name and its operands: product, conversion, sort, copy, pointwise and so on.

Only names of ATen's own vocabulary appear here. The path of a product follows from the layouts of its operands.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

# products and the position of (left, right) among their tensor arguments; an accumulator comes before them
PRODUCTS: Dict[str, Tuple[int, int]] = {
    "mm": (0, 1), "bmm": (0, 1), "mv": (0, 1), "matmul": (0, 1), "dot": (0, 1), "vdot": (0, 1),
    "addmm": (1, 2), "addmm_": (1, 2), "baddbmm": (1, 2), "addbmm": (1, 2), "addmv": (1, 2), "addmv_": (1, 2),
    "_addmm_activation": (1, 2), "_sparse_mm": (0, 1), "_sparse_addmm": (1, 2), "sspaddmm": (1, 2), "hspmm": (0, 1),
    "smm": (0, 1), "sparse_sampled_addmm": (1, 2), "linear": (0, 1), "mkldnn_linear": (0, 1), "_mkl_linear": (0, 1),
    "_linear_pointwise": (0, 1), "_int_mm": (0, 1), "_scaled_mm": (0, 1), "_weight_int8pack_mm": (0, 1),
    "_weight_int4pack_mm": (0, 1), "_weight_int4pack_mm_for_cpu": (0, 1), "_cslt_sparse_mm": (0, 1),
    "_sparse_semi_structured_mm": (0, 1), "_sparse_semi_structured_addmm": (1, 2),
    "_sparse_semi_structured_linear": (0, 1), "linear_dynamic": (0, 1), "fbgemm_linear_int8_weight": (0, 1),
    "fbgemm_linear_fp16_weight": (0, 1), "_trilinear": (0, 1), "bilinear": (0, 2),
    "_sparse_sparse_matmul": (0, 1), "_sparse_mm_reduce_impl": (0, 1),
}  # fmt: skip
CONVOLUTIONS = {"convolution", "_convolution", "convolution_overrideable", "conv1d", "conv2d", "conv3d",
                "mkldnn_convolution", "_slow_conv2d_forward", "slow_conv3d", "thnn_conv2d", "_convolution_pointwise",
                "cudnn_convolution", "miopen_convolution", "conv_transpose2d", "_conv_depthwise2d"}  # fmt: skip
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu", "mkldnn_rnn_layer", "_cudnn_rnn", "lstm_cell", "gru_cell"}
ATTENTION_MARKS = ("scaled_dot_product", "flash_attention", "efficient_attention", "_native_multi_head_attention")
DENSIFY = {"to_dense", "_to_dense", "sparse_to_dense", "_dense", "dequantize", "mkldnn_to_dense"}
SPARSIFY_MARKS = ("to_sparse", "_convert_indices", "coalesce", "_coalesce", "sparse_mask", "_sparse_mask",
                  "to_mkldnn", "_sparse_semi_structured_tile", "_cslt_compress")  # fmt: skip
SPARSE_BUILD_MARKS = ("_sparse_compressed_tensor", "sparse_compressed_tensor", "_sparse_coo_tensor", "sparse_coo_tensor",
                      "_sparse_csr_tensor", "sparse_csr_tensor", "_sparse_csc_tensor", "sparse_csc_tensor",
                      "_sparse_bsr_tensor", "sparse_bsr_tensor")  # fmt: skip
VALIDATE_MARKS = ("_validate_sparse", "_validate_compressed_sparse_indices")
# ops that take rows of their first tensor by index
LOOKUPS = {"embedding", "_embedding_bag", "_embedding_bag_forward_only", "embedding_renorm_", "_embedding_bag_dense"}
SORTS = {"sort", "argsort", "unique", "_unique2", "unique_dim", "unique_consecutive", "msort", "kthvalue", "topk",
         "searchsorted", "bucketize"}  # fmt: skip
COPIES = {"copy_", "_to_copy", "clone", "contiguous", "to", "copy", "_copy_from", "index_select", "gather", "index",
          "cat", "stack", "embedding", "repeat", "narrow_copy", "constant_pad_nd", "masked_select"}  # fmt: skip
ALLOCS = {"empty", "empty_like", "empty_strided", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like",
          "new_empty", "new_zeros", "new_full", "new_ones", "arange", "scalar_tensor", "resize_", "eye", "linspace",
          "lift_fresh", "new_empty_strided", "zero_", "fill_"}  # fmt: skip
RANDOM_MARKS = (
    "rand",
    "bernoulli",
    "normal",
    "dropout",
    "multinomial",
    "poisson",
    "exponential_",
    "uniform_",
    "random_",
    "standard_gamma",
    "dirichlet",
    "binomial",
    "geometric",
    "cauchy",
    "rrelu",
)
VIEWS = {"view", "_unsafe_view", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice", "select",
         "as_strided", "detach", "alias", "reshape", "_reshape_alias", "unbind", "split", "chunk", "narrow", "values",
         "_values", "indices", "_indices", "crow_indices", "col_indices", "ccol_indices", "row_indices", "view_as_real",
         "lift_fresh", "movedim", "flatten", "unfold", "diagonal", "_nnz", "dense_dim", "sparse_dim", "is_coalesced",
         "_coalesced_", "sym_size", "split_with_sizes", "numel", "_conj", "_neg_view", "mT", "squeeze_"}  # fmt: skip
COLLECTIVE_MARKS = ("all_reduce", "all_gather", "reduce_scatter", "allreduce", "allgather", "broadcast_", "wait_tensor")
POINTWISE = {"mul", "mul_", "add", "add_", "sub", "div", "where", "masked_fill", "masked_fill_", "relu", "gelu", "silu",
             "sigmoid", "tanh", "exp", "pow", "sqrt", "rsqrt", "neg", "abs", "ne", "eq", "ge", "gt", "le", "lt", "maximum",
             "minimum", "clamp", "threshold", "bitwise_and", "logical_and", "addcmul", "lerp"}  # fmt: skip


def base_name(func: Any) -> str:
    """``aten::mm`` for ``aten.mm.default``."""
    packet = getattr(func, "_schema", None)
    return str(packet.name) if packet is not None else str(func)


def short(name: str) -> str:
    return name.rsplit("::", 1)[-1]


def family(name: str, tags: Any = ()) -> str:
    """One of product, conv, recurrent, attention, densify, conversion, build, validate, sort, copy, alloc, view,
    collective, pointwise, other."""
    s = short(name)
    if s in PRODUCTS:
        return "product"
    if s in CONVOLUTIONS:
        return "conv"
    if s in RECURRENT:
        return "recurrent"
    if any(m in s for m in ATTENTION_MARKS):
        return "attention"
    if s in DENSIFY:
        return "densify"
    if any(m in s for m in VALIDATE_MARKS):
        return "validate"
    if any(m in s for m in SPARSE_BUILD_MARKS):
        return "build"
    if s in VIEWS:
        return "view"
    if any(m in s for m in SPARSIFY_MARKS):
        return "conversion"
    if s in SORTS:
        return "sort"
    if s in COPIES:
        return "copy"
    if s in ALLOCS:
        return "alloc"
    if any(m in s for m in COLLECTIVE_MARKS):
        return "collective"
    if s in POINTWISE or _is_pointwise(tags):
        return "pointwise"
    return "other"


def _is_pointwise(tags: Any) -> bool:
    return any(str(t).endswith("pointwise") for t in tags)


def is_random(name: str) -> bool:
    s = short(name)
    return any(m in s for m in RANDOM_MARKS)


_PATH_OF_FAMILY = {"conv": "conv", "attention": "attention", "densify": "conversion", "conversion": "conversion",
                   "build": "conversion", "validate": "conversion", "sort": "sort", "copy": "copy", "alloc": "alloc",
                   "collective": "collective", "pointwise": "elementwise", "view": "other"}  # fmt: skip


def path(name: str, fam: str, layouts: List[str], sparse_at: Optional[int]) -> str:
    """The path name of the contract for one call, from its family and the layouts of its operands.

    ``layouts`` are those of (left, right) for a product; ``sparse_at`` is 0 or 1 for the sparse side, None if dense.
    """
    if fam == "recurrent":
        return "dense"
    if fam != "product":
        return _PATH_OF_FAMILY.get(fam, "other")
    if "semi_structured" in name or "_cslt_" in name:
        return "sparse-nm"
    if sparse_at is None:
        return "dense"
    lay = layouts[sparse_at]
    if lay in ("bsr", "bsc"):
        return "sparse-bsr"
    if lay == "coo":
        return "sparse-coo"
    if sparse_at == 1:
        return "sparse-csr-rhs"
    return "sparse-csr" if lay == "csr" else "sparse-csc"
