"""What names mean: a family at a time, with names as profilers really print them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsetui.evidence.kernels import PATHS, Catalogue, CatalogueError, Match, readable

CATALOGUE = Catalogue.load(())

SYMBOLS = {
    "mkl": [
        ("mkl_blas_avx512_sgemm_kernel_0", "dense"),
        ("mkl_blas_avx2_dgemm_kernel_0", "dense"),
        ("mkl_blas_def_sgemm_kernel_0_zen", "dense"),
        ("mkl_blas_avx512_xsgemv", "dense"),
        ("mkl_blas_avx2_sgemm_scopy_down24_ea", "dense"),
        ("mkl_blas_avx512_xsaxpy", "elementwise"),
        ("mkl_blas_avx512_xscopy", "copy"),
        ("mkl_serv_allocate", "alloc"),
        ("cblas_sgemm", "dense"),
    ],
    "mkl-sparse": [
        ("mkl_sparse_s_csr_ng_n_mm_f_ker_i4_def", "sparse-csr-rhs"),
        ("mkl_sparse_d_csr_ng_n_mm_f_ker_i8_avx2", "sparse-csr-rhs"),
        ("mkl_sparse_s_csr_ng_n_mm_c_ker_i4_avx512", "sparse-csr"),
        ("mkl_sparse_s_csr_ng_n_mv_ker_i4_avx2", "sparse-csr"),
        ("mkl_sparse_s_xcsr_ng_t_mv_i4", "sparse-csr"),
        ("mkl_sparse_s_mm_i4", "sparse-csr"),
        ("mkl_sparse_s_bsr_ng_n_mm_rows_i4", "sparse-bsr"),
        ("mkl_sparse_s_xcsc_mv_n_def_i4", "sparse-csc"),
        ("mkl_sparse_s_coo_mm_i4", "sparse-coo"),
        ("mkl_sparse_s_convert_csr_i4", "conversion"),
        ("mkl_sparse_s_transpose_matrix_i4", "conversion"),
        ("mkl_sparse_order_i4", "sort"),
        ("mkl_sparse_s_create_csr_i4_avx2", "other"),
    ],
    "onednn": [
        ("dnnl::impl::cpu::x64::gemm_driver<float, float, float>", "dense"),
        ("dnnl::impl::cpu::x64::jit_brgemm_kernel_t", "dense"),
        ("dnnl::impl::cpu::x64::brgemm_matmul_t<avx512_core>::execute_body", "dense"),
        ("dnnl::impl::cpu::x64::jit_avx512_common_convolution_fwd_t<f32>::execute_forward_2d", "conv"),
        ("dnnl::impl::cpu::x64::jit_uni_reorder_t::omp_driver", "copy"),
        ("dnnl::impl::cpu::x64::jit_uni_eltwise_fwd_t::execute", "elementwise"),
        ("dnnl::impl::cpu::matmul::ref_sparse_matmul_t::run_csr_kernel", "sparse-csr"),
        ("_ZN4dnnl4impl3cpu3x6411brgemm_descE", "dense"),
    ],
    "openblas": [
        ("sgemm_kernel_HASWELL", "dense"),
        ("sgemm_kernel_direct_SKYLAKEX", "dense"),
        ("dgemv_n_ZEN", "dense"),
        ("gotoblas_init", "dense"),
        ("blas_thread_server", "dense"),
    ],
    "aten-sparse": [
        ("at::native::s_addmm_out_sparse_dense_worker<float>(long, long)", "sparse-coo"),
        ("_ZN2at6native31s_addmm_out_sparse_dense_workerIfEEvlllRNS_6TensorE", "sparse-coo"),
        ("at::native::addmm_out_sparse_csr_native_cpu", "sparse-csr"),
        ("at::native::sparse::impl::mkl::addmm_out_sparse_csr(at::Tensor const&)", "sparse-csr"),
        ("at::native::_csr_matmult<float>(long, long, long const*)", "sparse-coo"),
        ("at::native::(anonymous namespace)::sparse_matmul_kernel<float>", "sparse-coo"),
        ("at::native::dense_to_sparse_csr(at::Tensor const&)", "conversion"),
        ("at::native::sparse_compressed_to_dense(at::Tensor const&)", "conversion"),
        ("at::native::(anonymous namespace)::convert_indices_from_coo_to_csr_cpu<long, int>", "conversion"),
        ("_ZN2at6native15dense_to_sparseERKNS_6TensorE", "conversion"),
        ("at::native::_coalesce_sparse_cpu(at::Tensor const&)", "sort"),
        ("_ZN2at6native20_coalesce_sparse_cpuERKNS_6TensorE", "sort"),
        ("at::native::mul_out_sparse_cpu", "elementwise"),
        ("at::native::_sparse_mm(at::Tensor const&, at::Tensor const&)", "sparse-csr"),
    ],
    "aten": [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "elementwise"),
        ("void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<"
         "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}", "copy"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>", "copy"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "other"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>", "other"),
        ("void at::native::radixSortKVInPlace<2, -1, 128, 32, long, long, unsigned int>", "sort"),
        ("void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>>", "sort"),
        ("at::native::AVX2::vectorized_loop", "elementwise"),
        ("at::native::cpublas::gemm(at::native::TransposeType)", "dense"),
        ("at::native::templates::cuda::something_new", "other"),
    ],
    "fbgemm": [
        ("fbgemm::ExecuteKernel<fbgemm::PackAMatrix<unsigned char, int>>::execute", "dense"),
        ("fbgemm::internal::SparseDenseMMAvx2(int, int, int const*)", "sparse-csr"),
        ("fbgemm::PackBMatrix<signed char, int>::pack_unpack_", "copy"),
        ("fbgemm_gpu::_FP8rowwise_to_float_cuda_kernel<float>", "elementwise"),
    ],
    "xnnpack": [
        ("xnn_f32_gemm_minmax_ukernel_5x16__avx512f_broadcast", "dense"),
        ("xnn_f32_spmm_minmax_ukernel_32x1__avx", "sparse-csr"),
        ("xnn_f32_dwconv_minmax_ukernel_9p16c__avx", "conv"),
        ("xnn_f32_vadd_minmax_ukernel__avx_u16", "elementwise"),
        ("xnn_setup_runtime", "other"),
    ],
    "qnnpack": [
        ("pytorch_q8gemm_ukernel_4x4c2__sse2", "dense"),
        ("pytorch_q8gemm_dq_sparse_1x4_ukernel_8x4_packedA_w16__sse2", "sparse-bsr"),
        ("pytorch_q8conv_ukernel_4x4c2__sse2", "conv"),
    ],
    "openmp": [
        ("gomp_team_barrier_wait_end", "barrier"),
        ("gomp_barrier_wait", "barrier"),
        ("GOMP_parallel", "barrier"),
        ("__kmp_hyper_barrier_release", "barrier"),
        ("__kmpc_barrier", "barrier"),
        ("__kmp_fork_barrier", "barrier"),
        ("omp_get_num_threads", "other"),
    ],
    "glibc": [
        ("__memmove_avx_unaligned_erms", "copy"),
        ("__memset_avx512_unaligned_erms", "copy"),
        ("memcpy@@GLIBC_2.14", "copy"),
        ("_int_malloc", "alloc"),
        ("malloc", "alloc"),
        ("cfree@GLIBC_2.2.5", "alloc"),
        ("clear_page_erms", "alloc"),
        ("asm_exc_page_fault", "alloc"),
        ("__futex_abstimed_wait_common", "wait"),
        ("epoll_wait", "wait"),
        ("__GI___poll", "wait"),
        ("__select", "wait"),
        ("__libc_read", "wait"),
        ("pthread_cond_wait@@GLIBC_2.3.2", "wait"),
        ("__expf_fma", "elementwise"),
    ],
    "cpython": [
        ("_PyEval_EvalFrameDefault", "python"),
        ("PyObject_GetAttr", "python"),
        ("_Py_dict_lookup", "python"),
        ("gc_collect_main", "python"),
        ("torch::PythonArgParser::raw_parse", "python"),
    ],
    "cublas": [
        ("ampere_sgemm_128x64_nn", "dense"),
        ("volta_sgemm_32x128_tt", "dense"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "dense"),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 2, 2, false>", "dense"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float>", "dense"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", "dense"),
        ("nvjet_tst_128x64_64x9_2x1_v_bz_TNT", "dense"),
    ],
    "cutlass": [
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_64x6_tn_align8>", "dense"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4>", "dense"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<int>>", "dense"),
    ],
    "cusparse": [
        ("void cusparse::csrmm_v2_kernel<cusparse::CsrMMPolicy<256u>>", "sparse-csr"),
        ("void cusparse::csrmv_v3_kernel<std::integral_constant<bool, false>, int>", "sparse-csr"),
        ("void cusparse::coomv_kernel<false, int, float>", "sparse-coo"),
        ("void cusparse::bsrmm_kernel<float>", "sparse-bsr"),
        ("void cusparse::csr2csc_kernel<int>", "conversion"),
        ("void cusparse::dense2csr_kernel<float>", "conversion"),
        ("void cusparse::csrsort_kernel<int>", "sort"),
    ],
    "cusparselt": [
        ("sm80_xmma_sparse_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64", "sparse-nm"),
        ("sm90_xmma_gemm_spmma_f16", "sparse-nm"),
        ("void cusparseLt::prune_kernel<float>", "conversion"),
        ("void cusparseLt::compress_kernel<__half>", "conversion"),
    ],
    "cutlass-sparse": [
        ("void cutlass::Kernel<cutlass::gemm::kernel::SparseGemm<cutlass::gemm::threadblock::MmaSparse>>", "sparse-nm"),
        ("void cutlass::Kernel<cutlass_tensorop_f16_s16832spgemm_f16_128x128_64x3_tn_align8>", "sparse-nm"),
        ("void sparse_semi_structured_mad_op_kernel", "sparse-nm"),
    ],
    "triton-bsr": [
        ("_bsr_strided_dense_rowspace_kernel", "sparse-bsr"),
        ("bsr_dense_addmm_kernel", "sparse-bsr"),
        ("_scatter_mm2_kernel", "sparse-bsr"),
    ],
    "attention": [
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>", "attention"),
        ("attn_fwd", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "attention"),
        ("kernel_unified_attention_2d", "attention"),
    ],
    "conv": [
        ("volta_scudnn_128x128_relu_interior_nn_v1", "conv"),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>", "conv"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw", "conv"),
        ("igemm_fwd_gtcx2_nhwc_bf16_bx0_ex1_bt128x128x32", "conv"),
        ("miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3", "conv"),
    ],
    "collective": [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "collective"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("void vllm::cross_device_reduce_1stage<float, 2>", "collective"),
    ],
    "rocblas": [
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x256_MI16x16x1_SN", "dense"),
        ("rocblas_gemvt_kernel", "dense"),
        ("void rocsparse::csrmmnn_general_device<256u>", "sparse-csr"),
        ("void rocsparse::csrmvn_adaptive_kernel", "sparse-csr"),
        ("void rocsparse::coomvn_segmented_loops", "sparse-coo"),
        ("void rocsparse::bsrxmvn_kernel", "sparse-bsr"),
        ("void rocsparse::csr2csc_kernel", "conversion"),
        ("hipsparseSpMM", "sparse-csr"),
    ],
    "device-copy": [
        ("Memcpy HtoD (Pinned -> Device)", "copy"),
        ("Memset (Device)", "copy"),
        ("__amd_rocclr_copyBuffer", "copy"),
        ("cudaMemcpyAsync", "copy"),
        ("cudaMalloc", "alloc"),
        ("hipFree", "alloc"),
        ("cudaStreamSynchronize", "wait"),
        ("hipDeviceSynchronize", "wait"),
        ("cudaLaunchKernel", "other"),
    ],
    "sparse in name only": [
        ("void split_embedding_codegen_forward_unweighted_kernel<float, float, float, long, 2ul>", "other"),
        ("void fbgemm_gpu::permute_2D_data_kernel<false, int, int>", "other"),
        ("block_bucketize_sparse_features_kernel", "other"),
        ("at::native::EmbeddingBag_updateOutputKernel_sum_mean<float>", "other"),
        ("## sparse_data_dist ##", "other"),
        ("SparseAdam", "other"),
        ("void at::to_dense_representation_kernel<float>", "other"),
    ],
    "aten-vector": [
        ("at::native::cpublas_axpy_impl<float>(bool, long, c10::Scalar const&)", "elementwise"),
        ("at::native::cpublas::axpy<float>", "elementwise"),
        ("at::native::cpublas_copy_impl<float>", "copy"),
        ("at::native::cpublas::gemm(at::native::TransposeType)", "dense"),
    ],
    "fbgemm-sort": [
        ("fbgemm::radix_sort_parallel<long, long>", "sort"),
        ("_ZN6fbgemm12_GLOBAL__N_113radix_sort_kernelIllEEvPT_", "sort"),
    ],
    "kernel": [("[kernel]", "other"), ("[kernel.kallsyms]", "other")],
    "binding": [
        ("pybind11_meta_getattro", "python"),
        ("pybind11::cpp_function::dispatcher", "python"),
        ("slot_tp_call", "python"),
        ("list_dealloc", "python"),
        ("THPVariable_getitem", "python"),
        ("sys_write", "unknown"),  # the operating system's, whatever Python's modules are called
        ("set_task_cpu", "unknown"),
    ],
    "serving": [
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1", "dense"),
        ("sage_fwd", "attention"),
        ("Im2d2Col_v2", "conv"),
        ("transpose_CNHW2NCHW_V2_2D_WG_off64", "copy"),
        ("void (anonymous namespace)::store_kvcache<2048l, 4, false, long>()", "copy"),
    ],
}  # fmt: skip

OPS = [
    ("aten::mm", "dense", True),
    ("aten::addmm.out", "dense", True),
    ("aten::linear", "dense", True),
    ("aten::to_dense", "conversion", False),
    ("aten::_to_sparse_csr", "conversion", False),
    ("aten::_convert_indices_from_coo_to_csr", "conversion", False),
    ("aten::coalesce", "sort", False),
    ("aten::sort.values_stable", "sort", False),
    ("aten::_cslt_sparse_mm", "sparse-nm", False),
    ("aten::_sparse_semi_structured_linear", "sparse-nm", False),
    ("aten::_sparse_mm", "sparse-csr", True),
    ("aten::hspmm", "sparse-coo", False),
    ("aten::crow_indices", "other", False),
    ("aten::mul", "elementwise", False),
    ("aten::relu_", "elementwise", False),
    ("aten::copy_", "copy", False),
    ("aten::empty_strided", "alloc", False),
    ("aten::_softmax", "other", False),
    ("aten::conv2d", "conv", False),
    ("aten::scaled_dot_product_attention", "attention", False),
    ("c10d::allreduce_", "collective", False),
    ("fbgemm::permute_sparse_features", "other", False),
    ("aten::embedding_bag", "other", False),
    ("fb::to_dense_representation", "other", False),
    ("aten::view", "other", False),
    ("mylib::whatever", "unknown", False),
]


@pytest.mark.parametrize("family", SYMBOLS)
def test_every_family_has_its_path(family: str) -> None:
    wrong = {s: CATALOGUE.classify(s) for s, path in SYMBOLS[family] if CATALOGUE.classify(s).path != path}
    assert not wrong


@pytest.mark.parametrize(("op", "path", "unsure"), OPS)
def test_ops_by_name(op: str, path: str, unsure: bool) -> None:
    match = CATALOGUE.annotate(op)
    assert (match.path, match.unsure) == (path, unsure)


def test_a_library_speaks_for_a_symbol_that_nobody_knows() -> None:
    assert CATALOGUE.classify("0x00007f3a", "/lib/x86_64-linux-gnu/libgomp.so.1").path == "barrier"
    assert CATALOGUE.classify("do_it", "libgomp-a34b3233.so.1").path == "barrier"
    assert CATALOGUE.classify("inner", "libiomp5.so").path == "barrier"
    assert CATALOGUE.classify("xyz", "libcusparse.so.12").path == "sparse-csr"
    assert CATALOGUE.classify("xyz", "libpython3.11.so.1.0").path == "python"
    assert CATALOGUE.classify("mkl_blas_avx2_sgemm_kernel_0", "libtorch_cpu.so").path == "dense"


def test_what_nobody_knows_is_unknown() -> None:
    assert CATALOGUE.classify("frobnicate", "libfrob.so").path == "unknown"
    assert CATALOGUE.classify("").path == "unknown"
    assert CATALOGUE.annotate("").path == "unknown"


def test_users_add_rules_that_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        '[[rule]]\nfamily="acme"\npath="sparse-bsr"\nsymbol="^acme_blk"\n[[rule]]\npath="dense"\nop="acme::mm"\n'
    )
    monkeypatch.setenv("SPARSETUI_KERNELS", str(mine))
    catalogue = Catalogue.load()
    assert catalogue.classify("acme_blk_mm") == Match("sparse-bsr", "acme", f"{mine}:1")
    assert catalogue.annotate("acme::mm").path == "dense"
    assert catalogue.classify("ampere_sgemm_128x64_nn").path == "dense"


def test_users_rules_also_live_in_the_configuration_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SPARSETUI_KERNELS", raising=False)
    (tmp_path / "sparsetui").mkdir()
    (tmp_path / "sparsetui" / "kernels.toml").write_text('[[rule]]\npath="sort"\nsymbol="acme_sorter"\n')
    assert Catalogue.load().classify("acme_sorter").path == "sort"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[rule]\n", "not TOML"),
        ('[[rule]]\npath="fast"\nsymbol="x"\n', "none of"),
        ('[[rule]]\npath="dense"\n', "needs symbol"),
        ('[[rule]]\npath="dense"\nsymbol="("\n', "no regular expression"),
        ('[[rule]]\npath="dense"\nsymbol=3\n', "no regular expression"),
        ('[[rule]]\npath="dense"\nsymbl="x"\n', "unknown key"),
        ("[rules]\n", "unexpected key"),
        ("rule = [1]\n", "a rule is a table"),
    ],
)
def test_a_bad_rule_is_named_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(CatalogueError) as e:
        Catalogue.load([file])
    assert told in str(e.value)
    assert str(file) in str(e.value)
    assert "\n" not in str(e.value)


def test_a_missing_rule_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="cannot be read"):
        Catalogue.load([tmp_path / "absent.toml"])


def test_mangled_names_are_opened_up() -> None:
    mangled = "_ZN2at6native12_GLOBAL__N_118direct_copy_kernelERNS_18TensorIteratorBaseE"
    assert readable(mangled).startswith("at::native::(anonymous namespace)::direct_copy_kernel")


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=300), st.text(max_size=40))
def test_any_text_has_a_path(symbol: str, module: str) -> None:
    assert CATALOGUE.classify(symbol, module).path in PATHS
    assert CATALOGUE.annotate(symbol).path in PATHS
