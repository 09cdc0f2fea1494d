"""The Triton kernels of the test data. Small, and each for one thing that a launch must get right."""
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, scale, n, BLOCK: tl.constexpr):
    """out = x * scale + y: an fp32 scalar that stays fp32."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * scale + y, mask=mask)


@triton.jit
def scalars_kernel(out_ptr, b, i8, u16, i64, f16, bf, f64):
    """Every width of a scalar, in one row of doubles."""
    tl.store(out_ptr + 0, b.to(tl.float64))
    tl.store(out_ptr + 1, i8.to(tl.float64))
    tl.store(out_ptr + 2, u16.to(tl.float64))
    tl.store(out_ptr + 3, i64.to(tl.float64))
    tl.store(out_ptr + 4, f16.to(tl.float64))
    tl.store(out_ptr + 5, bf.to(tl.float64))
    tl.store(out_ptr + 6, f64)


@triton.jit
def matmul_kernel(a_desc, b_desc, c_desc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c = a @ b.T by tensor descriptors that the host makes."""
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = a_desc.load([m, k * BK])
        b = b_desc.load([n, k * BK])
        acc = tl.dot(a, b.T, acc)
    c_desc.store([m, n], acc.to(tl.float16))


@triton.jit
def copy_kernel(x_ptr, out_ptr, rows, columns, BR: tl.constexpr, BC: tl.constexpr):
    """out = x by tensor descriptors that the kernel makes: they stand in global scratch."""
    x = tl.make_tensor_descriptor(x_ptr, shape=[rows, columns], strides=[columns, 1], block_shape=[BR, BC])
    out = tl.make_tensor_descriptor(out_ptr, shape=[rows, columns], strides=[columns, 1], block_shape=[BR, BC])
    r = tl.program_id(0) * BR
    c = tl.program_id(1) * BC
    out.store([r, c], x.load([r, c]))


@triton.jit
def specialized_kernel(a_desc, b_desc, c_desc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The same product with warps that load and others that multiply: more warps than were asked for."""
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in tl.range(0, tl.cdiv(K, BK), warp_specialize=True, num_stages=2):
        a = a_desc.load([m, k * BK])
        b = b_desc.load([n, k * BK])
        acc = tl.dot(a, b.T, acc)
    c_desc.store([m, n], acc.to(tl.float16))
