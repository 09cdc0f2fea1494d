#!/usr/bin/env python3
"""Launches kernels by Triton itself and by libpurr, on the same inputs in the same run, and compares the bits:

  compare_triton.py LIBPURR.so

Needs a GPU of compute capability 9.0, PyTorch and Triton. The packages are made of the very kernels that Triton compiled
for its own launches. Exit code 77 where there is no such GPU.
"""
import ctypes
import os
import sys
import tempfile

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "../../kernels/triton"))
sys.path.insert(0, os.path.join(here, "../data/triton"))

import torch  # noqa: E402

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    print("skipped: no H100 or H200")
    sys.exit(77)

import triton  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

import export  # noqa: E402
import kernels  # noqa: E402


class Error(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int32) for n in ("struct_size", "status", "native_code", "rank", "line", "column")] + [
        ("message", ctypes.c_char * 512)
    ]


class Desc(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("path", ctypes.c_char_p),
        ("package", ctypes.c_void_p),
        ("metadata", ctypes.c_void_p),
        ("metadata_bytes", ctypes.c_uint64),
        ("cubin", ctypes.c_void_p),
        ("cubin_bytes", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("signature", ctypes.c_char_p),
        ("grid", ctypes.c_char_p * 3),
    ]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("dtype", ctypes.c_int32),
        ("num_dims", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("data", ctypes.c_void_p),
        ("pointers", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * 4),
        ("stride", ctypes.c_int64 * 4),
        ("scales", ctypes.c_void_p),
    ]


class Info(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("device", ctypes.c_int32),
        ("variant", ctypes.c_int32),
        ("grid", ctypes.c_uint32 * 3),
        ("num_threads", ctypes.c_uint32),
        ("cluster", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("num_registers", ctypes.c_int32),
        ("scratch_bytes", ctypes.c_uint64),
        ("scratch_align", ctypes.c_uint32),
        ("is_cooperative", ctypes.c_int32),
        ("may_overlap", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


purr = ctypes.CDLL(sys.argv[1])
DTYPES = {torch.float32: 2, torch.float16: 32, torch.bfloat16: 1}


def call(name, *args):
    err = Error(struct_size=ctypes.sizeof(Error))
    if getattr(purr, name)(*args, ctypes.byref(err)) != 0:
        raise RuntimeError(f"{name}: {err.message.decode()}")


class Launcher:
    def __init__(self, context, path):
        self.kernel, self.handle = ctypes.c_void_p(), ctypes.c_void_p()
        desc = Desc(struct_size=ctypes.sizeof(Desc), path=path.encode())
        call("purr_kernel_open", context, ctypes.byref(desc), ctypes.byref(self.kernel))
        call("purr_launcher_create", self.kernel, 0, ctypes.byref(self.handle))

    def set(self, name, value):
        index = ctypes.c_int32()
        call("purr_kernel_find_argument", self.kernel, name.encode(), ctypes.byref(index))
        if isinstance(value, TensorDescriptor):
            value = value.base
        if isinstance(value, torch.Tensor):
            tensor = Tensor(struct_size=ctypes.sizeof(Tensor), dtype=DTYPES[value.dtype], num_dims=value.dim())
            tensor.data = value.data_ptr()
            tensor.shape[: value.dim()] = list(value.shape)
            tensor.stride[: value.dim()] = list(value.stride())
            call("purr_launcher_set_tensor", self.handle, index, ctypes.byref(tensor), 0)
        elif isinstance(value, float):
            call("purr_launcher_set_real", self.handle, index, ctypes.c_double(value))
        else:
            call("purr_launcher_set_integer", self.handle, index, ctypes.c_int64(value))

    def launch(self):
        info = Info(struct_size=ctypes.sizeof(Info))
        call("purr_launcher_query", self.handle, ctypes.byref(info))
        if info.scratch_bytes > 0:
            self.scratch = torch.empty(info.scratch_bytes, dtype=torch.uint8, device="cuda")
            call("purr_launcher_set_scratch", self.handle, ctypes.c_void_p(self.scratch.data_ptr()),
                 ctypes.c_uint64(info.scratch_bytes))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        call("purr_launcher_launch", self.handle, stream)
        torch.cuda.synchronize()
        return info


def bits(tensor):
    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def compare(context, case, function, arguments, out, grid, rules, **options):
    """Launches by Triton, then by Purr from a package of the same compiled kernel; `out` is what is written."""
    out.fill_(float("nan"))
    compiled = function[grid](**arguments, **options)
    torch.cuda.synchronize()
    wanted = out.clone()
    package = export.Package(case)
    package.add(compiled, rules)
    with tempfile.TemporaryDirectory() as folder:
        package.write(folder)
        launcher = Launcher(context, folder)
        out.fill_(float("nan"))
        for name, value in arguments.items():
            if not name.isupper() or name in "MNK":
                launcher.set(name, value)
        info = launcher.launch()
    is_equal = torch.equal(bits(out), bits(wanted)) and not torch.isnan(out.float()).any().item()
    print(
        f"{case:12} {'equal' if is_equal else 'DIFFERENT'}: grid {list(info.grid)}, {info.num_threads} threads, cluster "
        f"{list(info.cluster)}, {info.shared_bytes} B shared, {info.scratch_bytes} B scratch, overlap {info.may_overlap}, "
        f"cooperative {info.is_cooperative}",
        flush=True,
    )
    return is_equal


def main():
    print(f"torch {torch.__version__}, Triton {triton.__version__}, {torch.cuda.get_device_name()}", flush=True)
    torch.manual_seed(0)
    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
    context = ctypes.c_void_p()
    call("purr_context_create", None, ctypes.byref(context))
    good = []

    n = 100003
    x, y, out = (torch.randn(n, device="cuda") for _ in range(3))
    add = {"x_ptr": x, "y_ptr": y, "out_ptr": out, "scale": 0.1, "n": n, "BLOCK": 1024}
    blocks = (triton.cdiv(n, 1024),)
    rows = ["cdiv(n, BLOCK)"]
    good.append(compare(context, "add", kernels.add_kernel, add, out, blocks, rows))
    good.append(compare(context, "cluster", kernels.add_kernel, add, out, blocks, rows, num_ctas=2))
    good.append(compare(context, "overlap", kernels.add_kernel, add, out, blocks, rows, launch_pdl=True))
    good.append(compare(context, "cooperative", kernels.add_kernel, add, out, blocks, rows, launch_cooperative_grid=True))

    M, N, K = 1000, 776, 520
    a = torch.randn(M, K, device="cuda", dtype=torch.float16)
    b = torch.randn(N, K, device="cuda", dtype=torch.float16)
    c = torch.empty(M, N, device="cuda", dtype=torch.float16)
    tile = [64, 64]
    product = {
        "a_desc": TensorDescriptor.from_tensor(a, tile),
        "b_desc": TensorDescriptor.from_tensor(b, tile),
        "c_desc": TensorDescriptor.from_tensor(c, tile),
        "M": M,
        "N": N,
        "K": K,
        "BM": 64,
        "BN": 64,
        "BK": 64,
    }
    tiles = (triton.cdiv(M, 64), triton.cdiv(N, 64))
    rules = ["cdiv(M, BM)", "cdiv(N, BN)"]
    good.append(compare(context, "descriptors", kernels.matmul_kernel, product, c, tiles, rules))
    good.append(compare(context, "specialized", kernels.specialized_kernel, product, c, tiles, rules))

    source, target = torch.randn(1000, 416, device="cuda"), torch.empty(1000, 416, device="cuda")
    copy = {"x_ptr": source, "out_ptr": target, "rows": 1000, "columns": 416, "BR": 16, "BC": 32}
    good.append(compare(context, "scratch", kernels.copy_kernel, copy, target, (63, 13), ["cdiv(rows, BR)", "cdiv(columns, BC)"]))

    print(f"{sum(good)} of {len(good)} are equal to the bit")
    sys.exit(0 if all(good) else 1)


main()
